"""An unpacked ais-bench package, as the predecessor's guides describe it."""

from __future__ import annotations

from pathlib import Path

BERT = {
    "bert_network": "large_acc",
    "enable_modelarts": "True",
    "distribute": "true",
    "epoch_size": "5",
    "train_steps": "12000",
    "enable_save_ckpt": "true",
    "enable_lossscale": "true",
    "do_shuffle": "true",
    "enable_data_sink": "true",
    "data_sink_steps": "100",
    "accumulation_steps": "1",
    "save_checkpoint_steps": "12000",
    "save_checkpoint_num": "1",
}
RESNET = {
    "enable_modelarts": "True",
    "run_distribute": "True",
    "epoch_size": "5",
    "device_num": "8",
    "run_eval": "True",
}
RESNET_13 = {"config_path": "resnet50_imagenet2012_Acc_config.yaml", **RESNET}
RESNET_15 = {"config_path": "resnet50_imagenet2012_Boost_config.yaml", **RESNET}

_ACCESS = """from easydict import EasyDict as ed

# 认证信息
access_config = ed({
    'access_key': 'LEGACYACCESSKEY',
    'secret_access_key': 'legacy-secret-key',
    'server': 'https://obs.cn-north-4.myhuaweicloud.com',
    'region_name': 'cn-north-4',
    'project_id': '0a1b2c',
    'iam_endpoint': '',
    'obs_endpoint': '',
    'modelarts_endpoint' : '',
})
"""
_SESSION = """
{session} = ed({{
    '{parameters}': [
{rows}
    ],
    'inputs': '/zgwtest/lcm_test/dataset/{data}/',
    'code_dir': '/zgwtest/lcm_test/{code}/',
    'boot_file': '/zgwtest/lcm_test/{code}/{boot}',
    'job_name': "aisbench-debug",
    'framework_type': 'Ascend-Powered-Engine',
    'framework_version': '{engine}',
    'pool_id' : None,
    'train_instance_type': 'modelarts.kat1.8xlarge',
    'train_instance_count': 1,
    # 'nas_type' : None,
    "out_base_url": "/zgwtest/lcm_test/result/",
    "job_description_prefix": 'lcm-debug desc',
}})
"""


def config(parameters: dict[str, str], *, code: str, boot: str, data: str) -> str:
    """modelarts_config.py with both sessions."""
    text = _ACCESS
    for session, word, label, engine in (
        ("session_config", "hyperparameters", "label", "MindSpore-1.3-cann_5.0.2-python3.7-euleros2.8-aarch64"),
        ("session_config_v2", "parameters", "name", "mindspore_1.3.0-cann_5.0.2-py_3.7-euler_2.8.3-aarch64"),
    ):
        rows = "\n".join(f"        {{'{label}': '{name}', 'value': '{value}'}}," for name, value in parameters.items())
        text += _SESSION.format(
            session=session, parameters=word, rows=rows, data=data, code=code, boot=boot, engine=engine
        )
    return text


BERT_CONFIG = config(BERT, code="bert", boot="run_pretrain.py", data="enwiki_small")


def unpack(
    folder: Path,
    text: str = BERT_CONFIG,
    *,
    boot: str = "run_pretrain.py",
    script: str = "",
    shell: str = "export PYTHON_COMMAND=python3.7\nexport MODELARTS_VERSION=V2\n",
    thresholds: str = '["*"."*"]\nthroughput = { at_least = 1, unit = "sentences/s" }\naccuracy = { at_least = 0.5 }\n',
) -> Path:
    for name, content in {
        "code/config/modelarts_config.py": text,
        "code/config/config.sh": shell,
        "code/config.json": '{"testid": "20210126-ljp0IY", "Mode": "training"}',
        "code/system.json": "{}",
        f"code/code/{boot}": script or "print('training')\n",
        "thresholds.toml": thresholds,
    }.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if content:
            file.write_text(content, encoding="utf-8")
    return folder
