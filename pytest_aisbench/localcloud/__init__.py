"""ModelArts, IAM and OBS on 127.0.0.1: the vendor's signatures and errors, with jobs as local processes."""
