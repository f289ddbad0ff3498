"""Writing a rank table down: every value is text."""

from __future__ import annotations

import json
from typing import Any

from pytest_aisbench.domain.ranktable import Device, Form, RankTable


def _document(table: RankTable, *, group: str = "") -> dict[str, Any]:
    """As the file has it: every value is text."""
    if table.form is Form.LAB:
        return _lab(table, group)
    if table.form is Form.CLOUD:
        return _cloud(table, group or "job-trainjob")
    assert table.form is Form.V1_0
    return {
        "version": "1.0",
        "server_count": str(len(table.servers)),
        "server_list": [
            {
                "server_id": server.id,
                "device": [{"device_id": str(d.id), **_addressed(d), "rank_id": str(d.rank)} for d in server.devices],
                **({"host_ip": server.host_ip} if server.host_ip else {"host_nic_ip": "reserve"}),
            }
            for server in table.servers
        ],
        "status": "completed",
    }


def written(table: RankTable, *, group: str = "") -> str:
    return json.dumps(_document(table, group=group), indent=2, ensure_ascii=False) + "\n"


def _lab(table: RankTable, group: str) -> dict[str, Any]:
    ranks = table.ranks
    widest = max((len(server.devices) for server in table.servers), default=0)
    return {
        "board_id": "0x0020",
        "chip_info": table.chip or "910",
        "deploy_mode": "lab",
        "group_count": "1",
        "group_list": [
            {
                "device_num": str(len(ranks)),
                "server_num": str(len(table.servers)),
                "group_name": group,
                "instance_count": str(len(ranks)),
                "instance_list": [
                    {
                        "devices": [{"device_id": str(device.id), **_addressed(device)}],
                        "rank_id": str(device.rank),
                        "server_id": server.id,
                    }
                    for server, device in ranks
                ],
            }
        ],
        "para_plane_nic_location": "device",
        "para_plane_nic_name": [f"eth{index}" for index in range(widest)],
        "para_plane_nic_num": str(widest),
        "status": "completed",
    }


def _cloud(table: RankTable, group: str) -> dict[str, Any]:
    return {
        "group_count": "1",
        "group_list": [
            {
                "group_name": group,
                "device_count": str(len(table.ranks)),
                "instance_count": str(len(table.servers)),
                "instance_list": [
                    {
                        "pod_name": server.pod or f"{group}-{index}",
                        "server_id": server.id,
                        "devices": [{"device_id": str(d.id), **_addressed(d)} for d in server.devices],
                    }
                    for index, server in enumerate(table.servers)
                ],
            }
        ],
        "status": "completed",
    }


def _addressed(device: Device) -> dict[str, str]:
    return {"device_ip": ",".join(device.ips)} if device.ips else {}
