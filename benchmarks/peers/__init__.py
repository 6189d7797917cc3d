"""Other engines behind one small interface, each measured in a process of its own."""
