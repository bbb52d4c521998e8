"""The commands of `grid`; a module is loaded only when its command is called."""
