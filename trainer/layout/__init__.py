"""Which process is where: the axes, the mesh, which layouts are possible, and what each rank would hold."""
