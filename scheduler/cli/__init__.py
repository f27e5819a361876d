"""The command line: one file a command, torch-free. `__main__` joins it with what needs torch."""
