"""OBS, the object store. Begin with `service` (which request calls what), then `objects` (calls on objects and
uploads), `storage` (the objects on disk), `signature` (who may), `dialect` (OBS's and S3's headers and XML).

ModelArts, the engines and the server import it.
"""
