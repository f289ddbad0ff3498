"""What a bucket or an object answers when a client asks how it is set up: nothing can be set here, so the answers are
those of a new bucket. Setting something is refused with 501.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_aisbench.localcloud.messages import Response
from pytest_aisbench.localcloud.obs.dialect import OBS, Call, element, text, texts
from pytest_aisbench.localcloud.obs.index import ObjectError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_aisbench.localcloud.iam import Account
    from pytest_aisbench.localcloud.obs.storage import Objects

# The subresources of a bucket that a new bucket does not have: the code and the message of the 404.
ABSENT = {
    "cors": ("NoSuchCORSConfiguration", "The CORS configuration does not exist."),
    "customdomain": ("NoSuchCustomDomain", "The bucket has no custom domain."),
    "encryption": ("ServerSideEncryptionConfigurationNotFoundError", "The bucket has no encryption configuration."),
    "lifecycle": ("NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist."),
    "mirrorBackToSource": ("NoSuchMirrorBackToSourceConfiguration", "The bucket has no mirror rules."),
    "object-lock": ("ObjectLockConfigurationNotFoundError", "The bucket has no object lock configuration."),
    "ownershipControls": ("OwnershipControlsNotFoundError", "The bucket ownership controls were not found."),
    "policy": ("NoSuchBucketPolicy", "The specified bucket does not have a bucket policy."),
    "policyStatus": ("NoSuchBucketPolicy", "The specified bucket does not have a bucket policy."),
    "publicAccessBlock": ("NoSuchPublicAccessBlockConfiguration", "The public access block was not found."),
    "replication": ("ReplicationConfigurationNotFoundError", "The replication configuration was not found."),
    "tagging": ("NoSuchTagSet", "The TagSet does not exist."),
    "website": ("NoSuchWebsiteConfiguration", "The specified bucket does not have a website configuration."),
}
# Headers that ask for more than is kept here. To store the object without what they ask for would be a wrong 200.
_WISHES = {"tagging", "website-redirect-location", "expires", "persistent-headers", "callback", "fs-file-interface"}
_WISHES |= {f"object-lock-{name}" for name in ("mode", "retain-until-date", "legal-hold")}
_WISHES |= {"server-side-encryption", "server-side-encryption-customer-algorithm"}
_WISHED_HEADERS = frozenset(
    f"{prefix}{name}" for prefix in ("x-obs-", "x-amz-") for name in _WISHES | {"acl", "storage-class"}
) | frozenset(f"x-{vendor}-grant-{right}" for vendor in ("obs", "amz") for right in ("read", "write", "full-control"))
# What every object here has anyway.
_PRIVATE = frozenset(["private", "bucket-owner-full-control", "bucket-owner-read"])
_HAD = {
    **dict.fromkeys(["x-amz-acl", "x-obs-acl"], _PRIVATE),
    **dict.fromkeys(["x-amz-storage-class", "x-obs-storage-class"], frozenset(["standard"])),
}


def refuse_wishes(call: Call) -> None:
    headers = call.request.headers
    if _WISHED_HEADERS.isdisjoint(headers):
        return
    for name in _WISHED_HEADERS.intersection(headers):
        if headers[name].lower() not in _HAD.get(name, ()):
            raise ObjectError("NotImplemented", f"{name}: {headers[name]} is not served here.")


class Settings:
    """The questions, as routes of the service."""

    def __init__(self, objects: Objects, account: Account) -> None:
        self._objects = objects
        self._account = account

    def routes(self) -> dict[tuple[str, str, str], Callable[[Call], Response]]:
        bucket = {name: self._absent(*error) for name, error in ABSENT.items()}
        bucket |= {
            "acl": self._bucket_acl,
            "location": self._location,
            "logging": self._empty("BucketLoggingStatus"),
            "notification": self._empty("NotificationConfiguration"),
            "quota": self._fixed("Quota", texts(StorageQuota=0)),
            "requestPayment": self._fixed("RequestPaymentConfiguration", texts(Payer="BucketOwner")),
            "storageClass": self._fixed("StorageClass", ["STANDARD"]),
            "storageinfo": self._storage_info,
            "storagePolicy": self._fixed("StoragePolicy", texts(DefaultStorageClass="STANDARD")),
            "versioning": self._empty("VersioningConfiguration"),
        }
        routes = {("GET", "bucket", name): answer for name, answer in bucket.items()}
        routes["GET", "object", "acl"] = self._object_acl
        routes["GET", "object", "tagging"] = self._object_tags
        return routes

    def _absent(self, code: str, message: str) -> Callable[[Call], Response]:
        def answer(call: Call) -> Response:
            self._objects.bucket(call.bucket)
            raise ObjectError(code, message)

        return answer

    def _empty(self, name: str) -> Callable[[Call], Response]:
        return self._fixed(name, ())

    def _fixed(self, name: str, inner: Iterable[str]) -> Callable[[Call], Response]:
        def answer(call: Call) -> Response:
            self._objects.bucket(call.bucket)
            return call.answer(name, inner)

        return answer

    def _location(self, call: Call) -> Response:
        location = self._objects.bucket(call.bucket).location
        if call.dialect is OBS:
            return call.answer("Location", [location])
        # S3's clients take the text of the root; the vendor's, when it speaks S3, that of an element below it.
        return call.answer("LocationConstraint", [location, text("LocationConstraint", location)])

    def _storage_info(self, call: Call) -> Response:
        objects = list(self._objects.bucket(call.bucket).objects.values())
        size = sum(meta.size for meta in objects)
        return call.answer("GetBucketStorageInfoResult", texts(Size=size, ObjectNumber=len(objects)))

    def _bucket_acl(self, call: Call) -> Response:
        self._objects.bucket(call.bucket)
        return self._owner_only(call)

    def _object_acl(self, call: Call) -> Response:
        self._require_object(call)
        return self._owner_only(call)

    def _owner_only(self, call: Call) -> Response:
        owner = texts(ID=self._account.domain_id)
        if call.dialect is OBS:
            grantee = element("Grantee", owner)
        else:
            owner += texts(DisplayName=self._account.domain)
            space = 'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CanonicalUser"'
            grantee = f"<Grantee {space}>{''.join(owner)}</Grantee>"
        grant = element("Grant", [grantee, text("Permission", "FULL_CONTROL")])
        return call.answer("AccessControlPolicy", [element("Owner", owner), element("AccessControlList", [grant])])

    def _object_tags(self, call: Call) -> Response:
        self._require_object(call)
        return call.answer("Tagging", [element("TagSet", ())])

    def _require_object(self, call: Call) -> None:
        if self._objects.head(call.bucket, call.key) is None:
            raise ObjectError("NoSuchKey", "The specified key does not exist.")
