"""Reading results: tables, plots and report folders, from rows alone. Needs neither torch nor a GPU."""
