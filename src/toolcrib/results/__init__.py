"""Large results: kept whole behind a handle, shown as a preview, and read in parts."""
