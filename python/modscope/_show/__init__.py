"""Text, tables, notebooks and pages for a reader."""
