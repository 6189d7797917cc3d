"""From and to other forms: OpenAI's batch files, selections of rows, cards for data sets."""
