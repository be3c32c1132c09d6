"""How the hub starts the dashboard."""

from __future__ import annotations

from pulsetrain.dashboard import launch


def test_it_listens_on_loopback_and_calls_nobody():
    command = launch.command(8790)
    assert "--server.address=127.0.0.1" in command
    assert "--server.port=8790" in command
    assert "--browser.gatherUsageStats=false" in command
    assert "--server.fileWatcherType=none" in command


def test_the_token_travels_in_the_environment_alone():
    assert launch.environment("http://127.0.0.1:1", "secret")["PULSETRAIN_TOKEN"] == "secret"
    assert (
        launch.environment("http://127.0.0.1:1", "secret", hosts="a.b")["PULSETRAIN_DASHBOARD_HOSTS"] == "a.b"
    )
    assert not any("secret" in word for word in launch.command(8790))
