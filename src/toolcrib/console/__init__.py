"""Pages that show people what a gateway does. They start no process, change no file and show no secret."""
