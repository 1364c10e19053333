"""Files and folders on disk: leases, state files, safe reading and writing."""
