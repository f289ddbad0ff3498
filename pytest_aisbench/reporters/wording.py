"""What the page and the summary say, in English and in Chinese.

The words that programs look for, PASSED or `met`, stay as they are; a Chinese page says beside each what it means.
`one|many` is told apart by `count`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_aisbench.domain import chinese
from pytest_aisbench.domain.sentence import Sentence
from pytest_aisbench.reporters.sentences_zh import CHINESE_SENTENCES

ENGLISH_WORDS: dict[str, str] = {
    # Verdicts and findings
    "PASSED": "", "FAILED": "", "BROKEN": "", "INCONCLUSIVE": "",
    "met": "", "missed": "", "undecided": "", "unmeasured": "", "waived": "",
    "not judged": "not judged",
    "none judged": "none judged",
    "what to do": "What to do",
    "do FAILED": "the workload is to blame: read the job's log, then the findings",
    "do BROKEN": "the platform is to blame: run it again; if it stays, give its operator the job id",
    "do INCONCLUSIVE": "the noise is larger than the margin: run it again on a quieter machine, or widen the margin",
    "do nothing ran": "no job ran: change what the reason names",
    # The table of tests
    "result": "Result", "test": "Test", "verdict": "Verdict", "throughput": "Throughput", "accuracy": "Accuracy",
    "wanted": "Wanted", "remarks": "Remarks", "links": "Links", "job time": "Job time",
    "job time means": "how long the jobs of the case ran, all trials together; of other tests, the test itself",
    "slow": "{count} slow", "notes": "{count} note|{count} notes", "trials": "{count} trial|{count} trials",
    "log": "log", "request": "request", "console": "console",
    # Metrics by name; one that is not here is called what its workload calls it
    "metric throughput": "", "metric accuracy": "", "metric scaling": "", "metric steady_throughput": "",
    "metric time_to_accuracy": "",
    # The summary of the run
    "cases": "{count} case|{count} cases", "card-hours": "{count} card-hours",
    "run": "Run", "started": "Started (UTC)", "run by": "Run by", "wall time": "Wall time",
    "platform": "Platform", "cluster": "Cluster",
    "region": "region {name}", "nodes": "nodes {names}", "cards": "cards per node {names}",
    "versions": "Versions", "cost": "Cost",
    "not finished": "not finished", "exit code": "Exit code",
    "since": "Against the last run", "no last run": "there is no earlier run on this platform in the ledger",
    "new cases": "New", "gone cases": "Not in this run", "turned": "Verdict turned", "speed": "Throughput",
    "before": "before", "now": "now", "change": "change", "case": "case",
    "speed alike": "within {share} in all {count} cases that both measured",
    "turned none": "no verdict turned", "more": "and {count} more",
    "tested by": "Tested by", "reviewed by": "Reviewed by", "date": "Date and signature",
    # A case
    "more in results": "and {count} more in results.json",
    "left out": "left out, to keep the page small: {names}",
    "finding": "finding", "metric": "metric", "measured": "measured", "in words": "in words",
    "trial": "trial", "job": "job", "phase": "phase", "queued": "queued", "ran": "ran", "began": "began (UTC)",
    "stage": "stage", "pace": "Pace", "note": "Note", "logs": "Logs", "warning": "Warning",
    "request file": "Request", "console page": "Console", "claim": "wanted",
    "against last run": "Against run {run}: {was} → {now} ({share})",
    "stragglers": "Slow cards and nodes", "node": "node", "card": "card", "rank": "rank",
    "of the others": "of the others", "costs": "costs the whole", "all cards": "all",
    "fields": "Fields of IEEE 2937 and T/CESA 1169", "field": "field", "value": "value", "source": "source",
    "traits": "What was compared", "changed": "Changed since the last trial that is not comparable",
    "last lines": "Last lines of the log", "events": "What the platform says happened",
    # Charts
    "lifecycle": "{case}: lifecycle", "life stage": "staged", "life submit": "submitted", "life queue": "queued",
    "life train": "running", "life watch": "queued and running", "life harvest": "harvested", "life judge": "judged",
    "from the start": "from the start, {clock} UTC",
    "speed curve": "{case}: speed through the training", "loss curve": "{case}: loss through the training",
    "speed story": "{last} at the end", "steady": "steady {value}", "warm-up": "warm-up",
    "warm-up story": "warm-up of {count} point|warm-up of {count} points", "of job": "whole job", "of rank": "one rank",
    "loss story": "from {first} to {last}", "step": "step {count}", "epoch": "epoch {count}",
    "point": "point {count}",
    "reference": "reference", "by log": "by its log",
    "rank chart": "{case}: throughput by rank", "heat map": "{case}: throughput by node and card",
    "median": "median", "median story": "median {value} per rank",
    "each bar": "each bar is the slowest of {count} ranks",
    "outliers": "{count} outlier: rank {names}|{count} outliers: ranks {names}",
    "missing ranks": "{count} missing: rank {names}|{count} missing: ranks {names}",
    "no outlier": "no outlier among {count} ranks", "and more": "{names} and {count} more", "missing": "missing",
    "node n": "node {node}", "rank n": "rank {first}", "ranks n": "ranks {first} to {last}", "no result": "no result",
    "each cell": "each cell is the slowest of {count} nodes",
    "scaling": "{case}: scaling", "ideal": "ideal", "efficiency": "{share} efficiency",
    "scaling story": "{value} at {shape}", "this run": "this run", "from history": "dashed: from history",
    "history": "{case}: history of the throughput", "history story": "{count} earlier trial|{count} earlier trials",
    "interval": "what the trials tell: {low} to {high}", "this trial": "this run {value}",
    "newest trial": "newest {value}",
    "seconds": "{value} s", "minutes": "{minutes} min {seconds} s", "hours": "{hours} h {minutes} min",
    # The terminal
    "in unit": "throughput in {unit}", "report": "report", "none": "none", "not recorded": "not recorded",
    # pytest-html's own
    "environment": "Environment", "summary": "Summary", "filter": "(Un)check the boxes to filter the results.",
    "one passed": "Passed", "one failed": "Failed", "one skipped": "Skipped", "one error": "Error",
    "one xfailed": "XFailed", "one xpassed": "XPassed", "one rerun": "Rerun", "made": "",
    "show all": "Show all details", "hide all": "Hide all details", "hide details": "hide details",
    "show details": "show details", "expand": "expand", "collapse": "collapse",
    "outcome passed": "Passed", "outcome failed": "Failed", "outcome skipped": "Skipped", "outcome error": "Errors",
    "outcome xfailed": "Expected failures", "outcome xpassed": "Unexpected passes", "outcome rerun": "Reruns",
    "outcome retried": "Retried",
}  # fmt: skip

CHINESE_WORDS: dict[str, str] = {
    **chinese.RULINGS, **chinese.OUTCOMES,
    "not judged": "未判定",
    "none judged": "均未判定",
    "what to do": "处理建议",
    "do FAILED": "责任在工作负载：先看作业日志，再看各项判定",
    "do BROKEN": "责任在平台：请重新运行；若仍失败，把作业 ID 交给平台运维",
    "do INCONCLUSIVE": "噪声大于裕量：请在更空闲的机器上重新运行，或放宽裕量",
    "do nothing ran": "没有作业运行过：请按原因所述修改",
    "result": "结果", "test": "测试", "verdict": "判定", "throughput": "吞吐量", "accuracy": "精度",
    "wanted": "要求", "remarks": "备注", "links": "链接", "job time": "作业时长",
    "job time means": "该用例全部试验的作业运行时长之和；其他测试为测试本身的时长",
    "slow": "{count} 处偏慢", "notes": "{count} 条说明", "trials": "{count} 次试验",
    "log": "日志", "request": "请求", "console": "控制台",
    "metric throughput": "吞吐量", "metric accuracy": "精度", "metric scaling": "扩展效率",
    "metric steady_throughput": "稳态吞吐量", "metric time_to_accuracy": "达到精度用时",
    "cases": "{count} 个用例", "card-hours": "{count} 卡时",
    "run": "运行", "started": "开始时间（UTC）", "run by": "执行者", "wall time": "总用时",
    "platform": "平台", "cluster": "集群",
    "region": "区域 {name}", "nodes": "节点数 {names}", "cards": "每节点卡数 {names}",
    "versions": "版本", "cost": "成本",
    "not finished": "未结束", "exit code": "退出码",
    "since": "与上次运行相比", "no last run": "台账中没有该平台更早的运行",
    "new cases": "新增", "gone cases": "本次没有", "turned": "判定变化", "speed": "吞吐量",
    "before": "上次", "now": "本次", "change": "变化", "case": "用例",
    "speed alike": "两次都测得的 {count} 个用例变化均在 {share} 以内",
    "turned none": "判定没有变化", "more": "另有 {count} 项",
    "tested by": "测试人", "reviewed by": "审核人", "date": "日期与签名",
    "more in results": "另有 {count} 项见 results.json",
    "left out": "为控制页面大小省略：{names}",
    "finding": "判定", "metric": "指标", "measured": "实测", "in words": "详情",
    "trial": "试验", "job": "作业", "phase": "阶段", "queued": "排队", "ran": "运行", "began": "开始（UTC）",
    "stage": "暂存位置", "pace": "速度", "note": "说明", "logs": "日志", "warning": "警告",
    "request file": "请求", "console page": "控制台", "claim": "要求",
    "against last run": "与运行 {run} 相比：{was} → {now}（{share}）",
    "stragglers": "偏慢的卡与节点", "node": "节点", "card": "卡", "rank": "rank",
    "of the others": "相对其他", "costs": "整体损失", "all cards": "全部",
    "fields": "IEEE 2937 与 T/CESA 1169 字段", "field": "字段", "value": "值", "source": "来源",
    "traits": "可比条件", "changed": "与上一次不可比试验的差异",
    "last lines": "日志末尾", "events": "平台事件",
    "lifecycle": "{case}：生命周期", "life stage": "暂存", "life submit": "提交", "life queue": "排队",
    "life train": "运行", "life watch": "排队与运行", "life harvest": "收集", "life judge": "判定",
    "from the start": "自 {clock} UTC 起",
    "speed curve": "{case}：训练速度曲线", "loss curve": "{case}：损失曲线",
    "speed story": "结束时 {last}", "steady": "稳态 {value}", "warm-up": "预热",
    "warm-up story": "预热 {count} 个点", "of job": "整个作业", "of rank": "单个 rank",
    "loss story": "从 {first} 到 {last}", "step": "第 {count} 步", "epoch": "第 {count} 轮",
    "point": "第 {count} 点",
    "reference": "基准", "by log": "据日志",
    "rank chart": "{case}：各 rank 吞吐量", "heat map": "{case}：各节点各卡吞吐量",
    "median": "中位数", "median story": "每 rank 中位数 {value}",
    "each bar": "每根柱为 {count} 个 rank 中最慢者",
    "outliers": "{count} 个异常：rank {names}",
    "missing ranks": "{count} 个缺失：rank {names}",
    "no outlier": "{count} 个 rank 无异常", "and more": "{names} 等另 {count} 个", "missing": "缺失",
    "node n": "节点 {node}", "rank n": "rank {first}", "ranks n": "rank {first} 至 {last}", "no result": "无结果",
    "each cell": "每格为 {count} 个节点中最慢者",
    "scaling": "{case}：扩展性", "ideal": "理想", "efficiency": "效率 {share}",
    "scaling story": "{shape} 时 {value}", "this run": "本次运行", "from history": "虚线：来自历史",
    "history": "{case}：吞吐量历史", "history story": "此前 {count} 次试验",
    "interval": "试验所示区间：{low} 至 {high}", "this trial": "本次 {value}", "newest trial": "最新 {value}",
    "seconds": "{value} 秒", "minutes": "{minutes} 分 {seconds} 秒", "hours": "{hours} 小时 {minutes} 分",
    "in unit": "吞吐量单位：{unit}", "report": "报告", "none": "无", "not recorded": "未能记录",
    "environment": "环境", "summary": "摘要", "filter": "勾选以筛选结果。",
    "one passed": "通过", "one failed": "失败", "one skipped": "跳过", "one error": "错误",
    "one xfailed": "预期失败", "one xpassed": "意外通过", "one rerun": "重跑", "made": "报告生成于 $1 $2，由 ",
    "show all": "展开全部", "hide all": "收起全部", "hide details": "收起", "show details": "展开",
    "expand": "展开", "collapse": "收起",
    "outcome passed": "通过", "outcome failed": "失败", "outcome skipped": "跳过", "outcome error": "错误",
    "outcome xfailed": "预期失败", "outcome xpassed": "意外通过", "outcome rerun": "重跑", "outcome retried": "重试",
}  # fmt: skip


class Wording:
    """Says a thing of the table, with the facts in their places."""

    def __init__(self, lang: str, table: Mapping[str, str], sentences: Mapping[str, str] | None = None) -> None:
        self.lang = lang
        self._table = table
        self._sentences = sentences  # where they are not to be said in English

    def __call__(self, key: str, **facts: object) -> str:
        one, _, many = self._table[key].partition("|")
        text = many if many and str(facts.get("count")) != "1" else one
        return text.format(**facts) if facts else text

    def line(self, text: str) -> str:
        """A sentence in this language; what somebody else said as it was said."""
        if self._sentences is None or not isinstance(text, Sentence):
            return text
        return "".join(
            self._sentences[key].format(**{name: self._fact(name, fact) for name, fact in facts.items()})
            for key, facts in text.clauses
        )

    def _fact(self, name: str, fact: str) -> str:
        return self._table.get(f"metric {fact}", "") or fact if name == "metric" else self.line(fact)

    def meaning(self, word: str) -> str:
        """Of a word that programs know; the word itself where it needs none."""
        return self._table.get(word, "") or word

    def metric(self, name: str) -> str:
        """A metric by the name that files have for it, with its meaning where that is another language's. Workloads
        name metrics as they like, so a name is never looked up among the words of the page."""
        meaning = self._table.get(f"metric {name}", "")
        return f"{name} {meaning}" if meaning else name

    def word(self, word: str) -> str:
        """A word that programs know, with its meaning where that is another language's."""
        meaning = self._table.get(word, "")
        return f"{word} {meaning}" if meaning.lower() not in {"", word.lower()} else word


ENGLISH = Wording("en", ENGLISH_WORDS)
CHINESE = Wording("zh", CHINESE_WORDS, CHINESE_SENTENCES)


def wording(lang: object) -> Wording:
    return CHINESE if lang == "zh" else ENGLISH
