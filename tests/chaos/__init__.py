"""Chaos: runs that are stopped and damaged in every way. A package, lest the script chaos.py hides the folder."""
