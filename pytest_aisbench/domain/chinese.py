"""What verdicts, findings and exit codes are called in Chinese: the same in every report, and on the Tester's pages."""

from __future__ import annotations

from pytest_aisbench.domain import exitcode
from pytest_aisbench.domain.verdict import Outcome, Ruling

RULINGS = {
    Ruling.PASSED.value: "通过",
    Ruling.FAILED.value: "未通过",
    Ruling.BROKEN.value: "平台故障",
    Ruling.INCONCLUSIVE.value: "无法定论",
}
OUTCOMES = {
    Outcome.MET.value: "达标",
    Outcome.MISSED.value: "未达标",
    Outcome.UNDECIDED.value: "未决",
    Outcome.UNMEASURED.value: "未测得",
    Outcome.WAIVED.value: "豁免",
}
EXIT_CODES = {
    exitcode.PASSED: "所选用例全部通过",
    exitcode.FAILED: "有用例 FAILED 或测试失败",
    exitcode.INTERRUPTED: "被中断",
    exitcode.INTERNAL: "无法记录或内部错误",
    exitcode.USAGE: "用法错误",
    exitcode.NOTHING_JUDGED: "没有判定任何用例",
    exitcode.MISSING: "缺少必需的用例",
    exitcode.BROKEN: "有用例 BROKEN：平台原因，可重试",
    exitcode.INCONCLUSIVE: "有用例 INCONCLUSIVE：噪声大于裕量",
    exitcode.TERMINATED: "被终止",
}
