"""What a chart renders, and whether the trainer takes it.

helm           finds helm, renders a chart
refusal        what helm refuses, with the names and values there are
pod_commands   a rendered pod template becomes commands
installation   which `trainer` would be started here, where it cannot be asked
checking       asks the trainer whether runs may start
"""
