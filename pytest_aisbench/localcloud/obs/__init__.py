"""OBS, the object store. Begin with `service` (which request calls what, and the calls on buckets, objects and
uploads), then `settings` (what a bucket says of itself), `storage` (the objects on disk), `signature` (who may,
and whether the body is the signed one), `dialect` (OBS's and S3's headers and XML).

ModelArts, the engines and the server import it.
"""
