"""The recipe of the static word-piece table: fetch public packages, mine texts, train, pack and measure."""
