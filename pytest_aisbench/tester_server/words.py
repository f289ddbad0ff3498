"""The pages' words, in English, which are their own keys, and in Chinese. What a result says stays as it was sent."""

from __future__ import annotations

from pytest_aisbench.domain import chinese, exitcode

LANGUAGES = {"en": "English", "zh": "中文"}
_CHINESE = {
    "A": "甲",
    "B": "乙",
    "Compare": "对比",
    "Results are sent here by a run of pytest:": "由 pytest 运行把结果送到这里：",
    "Runs": "运行",
    "Cases": "用例",
    "Scaling": "扩展性",
    "Stragglers": "偏慢的卡与节点",
    "Audit": "审计",
    "Search": "搜索",
    "Projects": "项目",
    "Project": "项目",
    "Theme": "明暗",
    "Leave": "退出",
    "Skip to the content": "跳到正文",
    "run": "运行",
    "test": "测试",
    "case": "用例",
    "cases": "用例数",
    "platform": "平台",
    "ended": "结束于",
    "started": "开始于",
    "verdicts": "判定",
    "verdict": "判定",
    "card hours": "卡时",
    "throughput": "吞吐量",
    "accuracy": "精度",
    "reference": "基准",
    "band": "要求区间",
    "against the reference": "与基准之比",
    "reason": "原因",
    "results": "结果数",
    "last results": "最近走势",
    "metric": "指标",
    "outcome": "结论",
    "measured": "实测",
    "wanted": "要求",
    "text": "说明",
    "value": "值",
    "unit": "单位",
    "source": "来源",
    "node": "节点",
    "card": "卡",
    "whole node": "整个节点",
    "speed": "速度",
    "of the others": "相对其他",
    "cost": "整体损失",
    "seen": "次数",
    "worst speed": "最慢时",
    "mean cost": "平均损失",
    "last seen": "最近一次",
    "over time": "随时间",
    "shape": "规模",
    "cards": "卡数",
    "per card": "每卡吞吐量",
    "efficiency": "扩展效率",
    "ideal": "理想",
    "workload": "工作负载",
    "when": "时间",
    "who": "令牌",
    "from": "来自",
    "what": "内容",
    "answer": "应答",
    "bytes": "字节",
    "why": "原因",
    "name": "名称",
    "size": "大小",
    "change": "变化",
    "all": "全部",
    "all platforms": "所有平台",
    "only with something not passed": "只看有未通过的",
    "Show": "显示",
    "Older": "更早",
    "Newest": "最新",
    "Next": "下一页",
    "First": "第一页",
    "Compare two runs": "对比两次运行",
    "Compare with the run before": "与上一次运行对比",
    "Compare the chosen": "对比所选",
    "Choose two runs by their circles, one in each column.": "在两列圆圈里各选一次运行。",
    "Choose two runs in the list of runs.": "请在运行列表里选两次运行。",
    "only in A": "只在甲",
    "only in B": "只在乙",
    "Findings": "结论",
    "Measured": "实测数据",
    "Job": "作业",
    "Files": "文件",
    "Traits": "环境特征",
    "Other shapes": "其他规模",
    "Warnings": "警告",
    "What was sent": "收到的数据",
    "System": "系统",
    "Configuration": "配置",
    "Handed in beside the results": "随结果提交的附件",
    "attempt": "第几次",
    "received": "收到于",
    "What follows was said before, in attempt": "以下是此前所说的内容，第几次：",
    "sent by": "发送者",
    "as it was sent": "原文",
    "trend": "趋势",
    "Throughput, and the band it was judged by": "吞吐量，以及判定所用的区间",
    "Accuracy, and what was wanted": "精度，以及要求的下限",
    "What share of its speed a card keeps": "每张卡保持的速度比例",
    "The base is the smallest shape that was measured; every shape counts with its last result.":
        "以测得的最小规模为基准；每个规模取最近一次结果。",
    "Nodes are counted as the run counted them: the first node is 0, and a name of a machine is not known here.":
        "节点按运行时的编号计数，从 0 开始；这里不知道机器名。",
    "Each square is a span of time: the darker, the more it cost.": "每格是一段时间：颜色越深，损失越大。",
    "Nothing was slower than the others here.": "这里没有比别人慢的。",
    "Nothing is here yet.": "这里还没有内容。",
    "Nothing was found.": "没有找到。",
    "What to look for: a run, a case, a job, a key, or words of a reason":
        "要找什么：运行、用例、作业、键，或原因里的词",
    "Reasons are searched in the newest 10,000 results.": "原因只在最新的 10,000 条结果里搜索。",
    "Add a token, and send results with it:": "先添加令牌，再用它发送结果：",
    "A read token is needed": "需要只读令牌",
    "This token may not read.": "这个令牌不能读取。",
    "token": "令牌",
    "Enter": "进入",
    "Whoever keeps this Tester makes one with": "由 Tester 的管理员生成：",
    "There is no such page.": "没有这个页面。",
    "The database does not answer; try again.": "数据库没有应答，请稍后再试。",
    "not judged": "未判定",
    "missing": "缺失",
    "required, and not judged": "必需但未判定",
    "exit code": "退出码",
    "killed": "被杀死",
    **{meaning: chinese.EXIT_CODES[code] for code, meaning in exitcode.MEANING.items()},
    "The first of these are shown; the exports have all.": "这里只显示前面的；导出文件里有全部。",
    "not measured": "未测得",
    **chinese.RULINGS,
    **{ruling.lower(): text for ruling, text in chinese.RULINGS.items()},
    **chinese.OUTCOMES,
    "OK": "完成",
    "cluster": "集群",
    "single-server": "单机",
    "mode": "模式",
    "nodes × cards": "节点 × 卡",
    "times are UTC": "时间为 UTC",
    "oldest": "最早",
    "newest": "最新",
}  # fmt: skip


def word(language: str, text: str) -> str:
    return _CHINESE.get(text, text) if language == "zh" else text


def chosen(asked: str, kept: str, accepted: str) -> str:
    """By the address, by the cookie, or by what the browser likes best."""
    for one in (asked, kept):
        if one in LANGUAGES:
            return one
    ranked = sorted(_preferences(accepted), key=lambda each: -each[1])
    return next((tag for tag, quality in ranked if tag in LANGUAGES and quality > 0), "en")


def _preferences(accepted: str) -> list[tuple[str, float]]:
    found = []
    for part in accepted[:400].split(","):
        tag, _, quality = part.partition(";q=")
        try:
            found.append((tag.strip().lower()[:2], float(quality or 1)))
        except ValueError:
            continue
    return found
