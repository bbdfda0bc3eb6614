"""The workspace that operators take on a real GPU, a module for each subject."""
