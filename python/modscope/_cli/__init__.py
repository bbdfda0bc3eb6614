"""The command line. main.py is its entry, command.py parses every command, options.py has the options that several
commands share, and each command is in a module of its own name. Nothing else in the package imports these."""
