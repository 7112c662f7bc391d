import pytest

from npu_compile import doctor
from npu_compile.cli import main
from npu_compile.options import markdown_table


def test_options_prints_the_table(capsys):
    assert main(["options"]) == 0
    assert capsys.readouterr().out == markdown_table()


def test_doctor_gives_its_exit_code(monkeypatch):
    monkeypatch.setattr(doctor, "doctor", lambda: 7)
    assert main(["doctor"]) == 7


@pytest.mark.parametrize("arguments", [[], ["unknown"]])
def test_without_a_known_command_the_usage_is_shown(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "doctor" in capsys.readouterr().err
