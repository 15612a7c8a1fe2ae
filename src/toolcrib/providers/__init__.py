"""Where tools come from: functions of this process, providers of other shapes, and what is put around them."""
