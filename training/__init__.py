"""Train what the search ships: the static table of word pieces, and the weights and thresholds of the ranking."""
