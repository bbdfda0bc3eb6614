"""The captures of several ranks as one job."""
