"""What a month costs, worked out from sessions and prices alone, and as commands print it; and prices that are wrong."""

import html
import json
import tomllib
from pathlib import Path

import pytest
from run.test_session_by_hand import EPOCHS, by_hand, write_three

from edgefl.errors import ProfileError
from edgefl.fleet.load import load_fleet

DATA, ENERGY, SERVER = 0.02, 0.36, 1.5
"""Euros for a megabyte, a kilowatt-hour and an hour."""
PRICES = f'[prices]\ndata = "{DATA} EUR/MB"\nenergy = "{ENERGY} EUR/kWh"\nserver = "{SERVER} EUR/hour"\n'
WORDS = "--model mlp --method fedavg --clients 3 --per-round 3 --rounds 24 --conditions ideal --rounds-per-day 12"


def priced(folder: Path, prices: str = PRICES) -> str:
    """Write three devices, of which the sensor's bytes are paid for, and return their fleet."""
    fleet = write_three(folder)
    sensor = folder / "sensor.toml"
    sensor.write_text(f"{sensor.read_text()}metered = true\n")
    Path(fleet).write_text(f"{Path(fleet).read_text()}\n{prices}")
    return str(fleet)


def test_the_money_of_a_month_is_that_of_its_bytes_joules_and_hours(tmp_path, called):
    words = [*WORDS.split(), "--local-epochs", str(EPOCHS), "--profile", priced(tmp_path)]
    assert called("simulate", "--dry-run", *words, "--out", "run")[0] == 0
    line = json.loads(Path("run/rounds.jsonl").read_text().splitlines()[0])
    joules, longest_s, metered_bytes = 0.0, 0.0, 0
    for client in line["clients"]:
        profile = tomllib.loads((tmp_path / f"{client['device']}.toml").read_text())
        session = by_hand(profile, client["samples"], client["download_bytes"], client["upload_bytes"])
        joules, longest_s = joules + session["energy_j"], max(longest_s, session["total_s"])
        if client["device"] == "sensor":
            metered_bytes += client["download_bytes"] + client["upload_bytes"]
    rounds = 12 * 30
    data, energy, server = (
        rounds * metered_bytes / 1e6 * DATA,
        rounds * joules / 3.6e6 * ENERGY,
        rounds * longest_s / 3600 * SERVER,
    )
    goal = ["--require", f"money <= {1.01 * (data + energy + server):.3f}/month", "--minimize", "money"]
    status, output, error = called("whatif", *words, "--over-selections", "1,1.5", *goal, "--json", "--out", "page.html")
    assert status == 0, error
    result = json.loads(output)
    wanted = {"data": data, "energy": energy, "server": server, "total": data + energy + server}
    money = result["rows"][0]["money"]
    assert money.pop("currency") == "EUR"
    assert money == pytest.approx(wanted, rel=1e-12)
    assert result["required"]["taken"] == result["rows"][0]["label"]
    page = html.unescape(Path("page.html").read_text()).replace("\xa0", " ")
    assert f"A month of the fleet costs {data + energy + server:.2f} EUR" in page
    assert f">{data:.2f}<" in page


@pytest.mark.parametrize(
    ("prices", "told"),
    [
        (
            'energy = "0.36 EUR"',
            'prices.energy: expected an amount, a currency and one of the units kWh, Wh, such as "0.30 EUR/kWh"',
        ),
        ("data = 0.02", "prices.data: expected an amount, a currency and one of the units kB, MB, GB"),
        ('server = "1.2 EUR/MB"', "prices.server: expected an amount, a currency and one of the units hour, h, day"),
        ('server = "1 EUR/h"\nenergy = "1 USD/kWh"', "prices: expected prices in one currency, got energy in USD, server in EUR"),
        ("", "prices: expected at least one of data, energy and server"),
        ('power = "1 EUR/kWh"', "prices.power: unknown key"),
    ],
)
def test_a_wrong_price_is_one_message_with_its_key_and_remedy(prices, told, tmp_path):
    with pytest.raises(ProfileError) as caught:
        load_fleet(priced(tmp_path, f"[prices]\n{prices}\n"))
    message = str(caught.value)
    assert told in message
    assert "fleet.toml" in message
    assert "\n" not in message


def test_a_price_of_bytes_needs_a_metered_link(tmp_path):
    fleet = write_three(tmp_path)
    Path(fleet).write_text(f'{Path(fleet).read_text()}\n[prices]\ndata = "1 EUR/MB"\n')
    with pytest.raises(ProfileError, match=r"prices\.data: bytes are paid for on metered links, and no class has one"):
        load_fleet(str(fleet))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--require 'money <= 5/month'", "give the fleet prices"),
        ("--minimize money", "give the fleet prices"),
        ("--require 'money <= 5'", "money is that of the whole fleet in a month: give “money <= 500/month”"),
        ("--require 'money of phone <= 5/month'", "money is that of the whole fleet in a month"),
    ],
)
def test_money_is_asked_of_a_month_of_a_fleet_with_prices(words, told, tmp_path, called):
    import shlex

    status, _, error = called("whatif", *WORDS.split(), *shlex.split(words), "--profile", str(write_three(tmp_path)))
    assert (status, told in error) == (2, True), error
