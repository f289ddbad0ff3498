"""Apulis as a Platform: jobs run as pods, and reach our files by a shared folder or by OBS.

Uses the innermost of its three APIs, which does not confuse the numbers of workers and servers, and takes a job's id
from the client.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from pytest_aisbench.config.access import service_endpoint
from pytest_aisbench.config.options import machine_cores
from pytest_aisbench.config.settings import Settings
from pytest_aisbench.errors import AisbenchError, BadAnswer, PlatformError, Refused, Rejected, Unreachable, UsageFault
from pytest_aisbench.logs import get_logger, ignored, log_ignored
from pytest_aisbench.model.job import Job, JobSpec, LogPart, Request, StoreUrl
from pytest_aisbench.model.messages import plain
from pytest_aisbench.model.ports import Check, Store, failure, ok
from pytest_aisbench.net.retry import CHECK_S
from pytest_aisbench.platforms.apulis import request, settings
from pytest_aisbench.platforms.apulis.request import job_id
from pytest_aisbench.platforms.apulis.session import ApulisHttp, reading
from pytest_aisbench.platforms.apulis.settings import NAME, ApulisAccess, ApulisKind, apulis_access, require_apulis
from pytest_aisbench.platforms.apulis.watch import PHASES, Watch
from pytest_aisbench.platforms.local import cloud_platform_id, read_card
from pytest_aisbench.secret import Secret
from pytest_aisbench.stores.obs import Obs
from pytest_aisbench.stores.shared_folder import BUCKET, SharedFolder

_LOG = get_logger("platform")
_PAGE, _MOST_PAGES = 50, 20
_OVER = {word for word, phase in PHASES.items() if phase.is_final} | {"killing"}
_CARD = ("endpoint", "user", "password", "vc", "storage")
_DATA = "data"  # the folder of the storage that every pod has as /data


class Apulis:
    """A Platform; see the port for its methods."""

    name = NAME
    options = ApulisKind.options
    takes_environment = True

    def __init__(self, settings: Settings) -> None:
        self.max_jobs, self.poll_s, patience_s = 8, 5.0, 60.0
        self._cloud_id = ""
        if settings.cloud:
            self._cloud_id = read_card(settings.cloud).cloud_id
            settings = _with_card(settings, settings.cloud)
            self.max_jobs, self.poll_s, patience_s = machine_cores(), 0.2, 5.0
        self._access, self._keys = apulis_access(settings), settings.access
        require_apulis(self._access, self._keys, settings.sources.get("platform", "platform"))
        where = urlsplit(self._access.endpoint)
        self._site = "" if settings.cloud else f"{where.scheme}://{where.netloc}"
        self._share = "" if self._access.by_obs else BUCKET
        self.store: Store
        if self._share:
            self.store, above = SharedFolder(Path(self._access.share)), StoreUrl(BUCKET, "")
        else:
            self.store = Obs.of(self._keys, patience_s)
            above = StoreUrl(self._keys.bucket, self._keys.folder.strip("/"))
        self.root = above / "aisbench/"
        self._http = ApulisHttp(self._access, patience_s)
        self._watch = Watch(self._http, self.store)
        self._devices: Mapping[str, Any] | None = None

    @property
    def platform_id(self) -> str:
        return cloud_platform_id(self._id_by_address, self._access.endpoint, self._cloud_id)

    @property
    def former_platform_ids(self) -> Sequence[str]:
        return [self._id_by_address] if self._cloud_id else []

    @property
    def _id_by_address(self) -> str:
        return f"{self.name} {self._access.endpoint} {self._access.user} {self.root}"

    def share(self) -> Mapping[str, Any]:
        return {}

    def check(self) -> None:
        groups = self._http.current_user(CHECK_S).get("currentVC")
        if isinstance(groups, list) and self._access.vc not in groups:
            advice = f"known: {', '.join(map(str, groups))}" if groups else "ask for one"
            raise Refused(f"{self._access.user} does not belong to the vc {self._access.vc}", advice=advice)
        self._list_devices(CHECK_S)
        self.store.check(self.root)

    def vet(self, spec: JobSpec) -> Iterable[Check]:
        wanted = settings.read_options(spec.options).device_type
        devices = self._list_devices(CHECK_S)
        if wanted not in devices:
            names = f"known: {', '.join(sorted(devices)) or 'none'}"
            yield failure("device type", f"{wanted} is not there; {names}", "change device_type in workload.toml")
            return
        with reading("its cards"):
            rows = devices[wanted].get("detail") or []
            fitting = [row for row in rows if int(row.get("capacity") or 0) >= spec.shape.devices]
        if rows and len(fitting) < spec.shape.nodes:
            text = f"{spec.shape} needs {spec.shape.nodes} nodes with {spec.shape.devices} of {wanted}"
            yield failure("cards", f"{text}, and there are {len(fitting)}", "choose fewer --nodes")
            return
        yield ok("device type", f"{wanted}: {devices[wanted].get('capacity', 'some')} cards")

    def render(self, spec: JobSpec) -> Request:
        body = request.request_body(spec, self._access, self._share)
        return Request("POST", f"{self._access.api}/PostJob", body)

    def submit(self, request: Request) -> str:
        body = {key: value for key, value in request.body.items() if key != "endpoints"}
        answer = self._post(body)
        # An expired token looks like every other refusal.
        if not answer.get("jobId") and self._http.renew_token():
            answer = self._post(body)
        # `code` is 0 and `error` is empty even after a failure: only a job that was made has an id.
        # It refuses an id that it has: that is our own job then, of a request that a gateway sent twice.
        job_id = str(answer.get("jobId") or "") or self._made_before(str(body["jobId"]))
        if not job_id:
            reason = answer.get("error") or answer.get("msg") or "no reason given"
            advice = f"check vc in [apulis], and image and device_type in workload.toml for {self._access.user}"
            raise Rejected(f"Apulis made no job of {body['jobName']}: {reason}", advice=advice)
        self._open_endpoints(job_id, request.body.get("endpoints") or [])
        return job_id

    def _made_before(self, job_id: str) -> str:
        """The id if the platform has a job with it, else an empty text."""
        try:
            return job_id if self._watch.detail(job_id) else ""
        except AisbenchError as error:
            if error.retryable:
                raise Unreachable(f"whether the job was created is not known: {error}") from None
            log_ignored(_LOG, error, "whether job %s was created before", job_id)
            return ""

    def find(self, request: Request) -> str | None:
        """Look for the id that we gave the job, then for its name, in case the platform gave it another id."""
        job_id, name = str(request.body["jobId"]), str(request.body["jobName"])
        if self._watch.detail(job_id, self._http.patience_s):
            return job_id
        return next(self._ids_called(name, self._http.patience_s), None)

    def named(self, name: str) -> str | None:
        ours = job_id(name)
        if self._watch.detail(ours).get("jobName") == name:
            return ours
        return next(self._ids_called(name, CHECK_S), None)

    def inspect(self, job_ids: Iterable[str]) -> Mapping[str, Job]:
        return {job_id: self._watch.inspect(job_id) for job_id in dict.fromkeys(job_ids)}

    def logs(self, job_id: str, node: int = 0, since: int = 0) -> LogPart:
        return self._watch.logs(job_id, node, since)

    def usage(self, job_id: str, node: int = 0) -> Mapping[str, Sequence[float]]:
        """Empty where the platform has no metrics, or none for us."""
        try:
            return self._watch.usage(job_id, node)
        except (Refused, Rejected, BadAnswer) as error:
            log_ignored(_LOG, error, "how node %d of job %s is used", node, job_id)
            return {}

    def events(self, job_id: str) -> Sequence[str]:
        return self._watch.events(job_id)

    def console(self, job_id: str) -> str:
        """The page of a training in AIArts, which a local cloud does not have."""
        return f"{self._site}/AIarts/model-training/{quote(job_id, safe='')}/detail" if self._site else ""

    def job_endpoints(self, request: Request, job_id: str) -> Mapping[str, str]:
        wanted = request.body.get("endpoints") or []
        return self._watch.endpoints(job_id, wanted) if wanted else {}

    def cancel(self, job_id: str) -> None:
        answer = self._http.ask("KillJob", jobId=job_id, userName=self._access.user)
        result = str(answer.get("result") or "") if isinstance(answer, dict) else ""
        if result.startswith("Success"):
            return
        word = str(self._watch.status(job_id, self._http.patience_s).get("jobStatus") or "")
        if word and word.lower() not in _OVER:
            advice = "jobs are stopped by their owner, or by the vc's administrator"
            raise PlatformError(f"job {job_id} is {word} and was not stopped: {result or answer!r}", advice=advice)

    def close(self) -> None:
        self._http.close()
        self.store.close()

    def _post(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            answer = self._http.send("PostJob", {**body, "env": [*body["env"], *self._keys_for_pods()]})
        except BadAnswer as error:
            # A server answered, but without a job: the job may exist all the same.
            raise Unreachable(f"whether the job was created is not known: {error}") from None
        return answer if isinstance(answer, dict) else {"error": plain(str(answer), 200) if answer else ""}

    def _list_devices(self, patience_s: float) -> Mapping[str, Any]:
        if self._devices is None:
            answer = self._http.ask("GetAllDevice", userName=self._access.user, patience_s=patience_s)
            with reading("its cards"):
                self._devices = {str(name): dict(row) for name, row in answer.items()}
        return self._devices

    def _ids_called(self, name: str, patience_s: float) -> Iterator[str]:
        """The ids of jobs of this name, newest first. An answer has several lists; only `allJobs` is complete."""
        user, vc = self._access.user, self._access.vc
        which = {"userName": user, "vcName": vc, "jobOwner": user, "jobType": "training", "jobStatus": "all"}
        order = {"searchWord": name, "orderBy": "jobTime", "order": "desc"}
        for page in range(1, _MOST_PAGES + 1):
            answer = self._http.ask("ListJobsV3", patience_s=patience_s, **which, **order, pageNum=page, pageSize=_PAGE)
            with reading("a list of jobs"):
                rows = answer["allJobs"]
                ids = [str(row["jobId"]) for row in rows if row.get("jobName") == name]
            yield from ids
            if len(rows) < _PAGE:
                return

    def _open_endpoints(self, job_id: str, wanted: list[str]) -> None:
        """Open ways to look into the pods. The job trains without them, so an error here does not fail it."""
        if wanted:
            with ignored(_LOG, AisbenchError, "the endpoints of job %s", job_id, level=logging.WARNING):
                self._http.send("endpoints", {"jobId": job_id, "endpoints": wanted}, userName=self._access.user)

    def _keys_for_pods(self) -> list[dict[str, str]]:
        """The keys to OBS, if [apulis] lets pods have them. The rendered request, which reports show, has none."""
        if self._share or not self._access.send_obs_keys:
            return []
        keys = self._keys
        given = {
            "ACCESS_KEY_ID": keys.access_key.reveal(),
            "SECRET_ACCESS_KEY": keys.secret_access_key.reveal(),
            "SECURITY_TOKEN": keys.security_token.reveal(),
            "S3_ENDPOINT": service_endpoint("obs", keys),
        }
        return [{"name": name, "value": value} for name, value in given.items() if value]


def _with_card(settings: Settings, file: Path) -> Settings:
    """The settings with the addresses and keys of a local cloud's card."""
    access = read_card(file).access
    card = json.loads(file.read_bytes())
    endpoint, user, password, vc, storage = (str(card.get(f"apulis_{key}") or "") for key in _CARD)
    if not endpoint:
        advice = "start a newer one with `aisbench cloud --json > FILE`"
        raise UsageFault(f"{file}: this local cloud has no apulis_endpoint", advice=advice)
    share = str(Path(storage) / _DATA) if storage else ""
    given = apulis_access(settings)
    apulis = dataclasses.replace(
        ApulisAccess(endpoint, user=user, password=Secret(password), vc=vc, share=share, share_in_pods=f"/{_DATA}"),
        results=given.results,
        send_obs_keys=given.send_obs_keys,
    )
    return dataclasses.replace(settings, access=access, tables={NAME: apulis})
