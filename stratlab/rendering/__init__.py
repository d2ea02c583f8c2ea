"""What a chart renders, and whether the trainer takes it.

helm           finds helm, renders a chart, and explains what helm refuses
pod_commands   a rendered pod template becomes commands
checking       asks the trainer whether runs may start
"""
