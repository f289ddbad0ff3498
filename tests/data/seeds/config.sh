# 必选，需设置为与当前环境匹配的Python版本
export PYTHON_COMMAND=python3.7
# 单服务器模式，取值为True/False，配置后各训练节点测试结果单独反馈，关闭时测试结果为各设备汇总性能结果。可选，默认关闭。
export SINGLESERVER_MODE=True
