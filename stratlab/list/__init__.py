"""Which runs there are: on this machine, or on a cluster's volume and in its namespace.

command     the verb `stratlab list`
list_table  the list as a table on a terminal
list_pod    the list of a cluster
run_list    the list of a folder of results
"""
