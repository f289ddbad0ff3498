"""What ais-bench-stubs asks of ModelArts and OBS, request by request: our notes of its flow, for API V1 and V2.

It configures itself by `modelarts_config.py`, speaks to ModelArts by the vendor's wheel, for which a stand-in is used,
and to OBS by the vendor's SDK. Its waits are shorter here, and nothing is copied from it.
"""

from __future__ import annotations

import importlib
import shutil
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from waiting import wait_until

CONFIG = "code/config/modelarts_config.py"
SESSIONS = {"V1": "session_config", "V2": "session_config_v2"}
CARDS = 8  # of a node that trains alone; the reports of ais-bench-stubs take no other number


def settings(package: Path, version: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Access and session of the package's configuration, by executing it."""
    tables: dict[str, Any] = {"ed": dict}
    text = (package / CONFIG).read_text(encoding="utf-8").replace("from easydict import EasyDict as ed", "")
    exec(text, tables)  # as it does itself
    return tables["access_config"], tables[SESSIONS[version]]


class Predecessor:
    def __init__(self, package: Path, version: str, *, single_server: bool) -> None:
        from obs import ObsClient

        self._package, self._version, self._alone = package, version, single_server
        self._access, self._config = settings(package, version)
        self._estimators = importlib.import_module("modelarts.estimator" + ("V2" if version == "V2" else ""))
        self._words = importlib.import_module("modelarts.train_params")
        session = importlib.import_module("modelarts.session").Session
        endpoints = {name: self._access[name] for name in ("iam_endpoint", "obs_endpoint", "modelarts_endpoint")}
        session.set_endpoint(**endpoints, region_name=self._access["region_name"])
        self._session = session(
            access_key=self._access["access_key"],
            secret_key=self._access["secret_access_key"],
            project_id=self._access["project_id"],
            region_name=self._access["region_name"],
        )
        self._obs = ObsClient(
            access_key_id=self._access["access_key"],
            secret_access_key=self._access["secret_access_key"],
            server=self._access["server"],
        )
        self._bucket = self._config["out_base_url"].split("/")[1]
        self._name = self._config["job_name"]

    def run(self, folder: Path) -> dict[str, float]:
        """Train, and report throughput and accuracy. `folder` is for a copy of the package's code."""
        code = shutil.copytree(self._package / "code/code", folder / "code")
        if self._alone:
            with (code / "ma-pre-start.sh").open("a") as script:
                script.write("\nexport SINGLESERVER_MODE=True\n")
        try:
            if self._version == "V1":
                self._output = f"{self._config['out_base_url']}V{self._next_version()}/"
            else:
                self._name += time.strftime("%Y_%m_%d-%H_%M_%S")
                self._estimators.Estimator.get_train_instance_types(self._session)
                self._output = f"{self._config['out_base_url']}{self._name}/"
            assert self._obs.putContent(self._bucket, self._key(self._output), content=None).status < 300
            self._obs.putFile(self._bucket, self._key(self._config["code_dir"]).rstrip("/"), str(code))
            job = self._create_v1() if self._version == "V1" else self._create_v2()
            wait_until(lambda: self._ended(job.get_job_info()), bool)
            self._fetch_logs(job.get_job_info())
            return self._report_alone() if self._alone else self._report()
        finally:
            self._obs.close()

    def _newest(self) -> Mapping[str, Any] | None:
        """The first job whose name contains ours, as it takes it."""
        page = self._estimators.Estimator.get_job_list(
            modelarts_session=self._session, per_page=10, page=1, order="asc", search_content=self._name
        )
        return page["jobs"][0] if page["job_total_count"] else None

    def _next_version(self) -> int:
        newest = self._newest()
        if newest is None:
            return 1
        ids = {"job_id": newest["job_id"], "version_id": newest["version_id"]}
        info = self._estimators.Estimator(modelarts_session=self._session, **ids).get_job_info()
        return int(info["version_name"][1:]) + 1

    def _create_v1(self) -> Any:
        given = self._config
        about = self._description()
        estimator = self._estimators.Estimator(
            modelarts_session=self._session,
            framework_type=given["framework_type"],
            framework_version=given["framework_version"],
            code_dir=given["code_dir"],
            boot_file=given["boot_file"],
            log_url=self._output,
            hyperparameters=given["hyperparameters"],
            output_path=self._output,
            pool_id=given["pool_id"] or None,
            train_instance_type=given["train_instance_type"] or None,
            train_instance_count=given["train_instance_count"],
            job_description=about,
        )
        newest = self._newest()
        if newest is None:
            job = estimator.fit(inputs=given["inputs"], wait=False, job_name=self._name)
        else:
            ids = {"job_id": newest["job_id"], "pre_version_id": newest["version_id"]}
            job = estimator.create_job_version(**ids, inputs=given["inputs"], wait=False, job_desc=about)
        info = job.get_job_info()
        assert info["is_success"], info
        return job

    def _create_v2(self) -> Any:
        given, words = self._config, self._words
        estimator = self._estimators.Estimator(
            session=self._session,
            framework_type=given["framework_type"],
            framework_version=given["framework_version"],
            training_files=words.TrainingFiles(
                code_dir=f"obs:/{given['code_dir']}", boot_file=f"obs:/{given['boot_file']}"
            ),
            log_url=f"obs:/{self._output}",
            parameters=given["parameters"],
            outputs=[words.OutputData(obs_path=f"obs:/{self._output}", name="train_url")],
            pool_id=given["pool_id"] or None,
            train_instance_type=given["train_instance_type"] or None,
            train_instance_count=given["train_instance_count"],
            job_description=self._description(),
        )
        inputs = [words.InputData(obs_path=f"obs:/{given['inputs']}", name="data_url")]
        job = estimator.fit(inputs=inputs, wait=False, job_name=self._name)
        info = job.get_job_info()
        assert "error_msg" not in info, info
        return job

    def _description(self) -> str:
        given = self._config
        shape = f"{given['train_instance_type']}_{given['train_instance_count']}"
        return f"{given['job_description_prefix']}_jobname_{self._name}_{shape}"

    def _ended(self, shown: Any) -> bool:
        status = shown["status"] if self._version == "V1" else shown["status"]["phase"]
        assert status not in {11, 12, 13, 14, "Failed", "Abnormal", "Terminated"}, shown
        return status in {10, "Completed"}

    def _fetch_logs(self, shown: Any) -> None:
        """It downloads one log for each node, by names that it makes from the job's ids."""
        if self._version == "V1":
            prefix = f"{shown['resource_id']}-job-{self._name}"
        else:
            prefix = f"modelarts-job-{shown['metadata']['id']}-worker"
        for node in range(self._config["train_instance_count"]):
            key = self._key(f"{self._output}{prefix}-{node}.log")
            answer = self._obs.getObject(self._bucket, key, loadStreamInMemory=True)
            assert answer.status < 300, f"{key}: {answer.errorCode}"
            assert b"Training end with return code: 0" in answer.body.buffer

    def _report(self) -> dict[str, float]:
        ranks = range(int(self._read("ranksize.json")))
        throughput = sum(self._read(f"throughput_{rank}.json") for rank in ranks)
        return {"throughput": throughput, "accuracy": self._read("accuracy.json")}

    def _report_alone(self) -> dict[str, float]:
        servers = range(self._config["train_instance_count"])
        speeds = [sum(self._read(f"{server}/throughput_{rank}.json") for rank in range(CARDS)) for server in servers]
        accuracies = [self._read(f"accuracy_{server}.json") for server in servers]
        return {"throughput": statistics.mean(speeds), "accuracy": statistics.mean(accuracies)}

    def _read(self, name: str) -> float:
        answer = self._obs.getObject(self._bucket, self._key(self._output + name), loadStreamInMemory=True)
        assert answer.status < 300, f"{name}: {answer.errorCode}"
        return float(answer.body.buffer)

    def _key(self, path: str) -> str:
        return path.removeprefix(f"/{self._bucket}/")
