"""How commands are told which store they are for, and that no secret shows, whatever is wrong."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from compaction.blocks.cli import options as blocks_options
from compaction.blocks.cli.commands import group
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.local.cluster.certs import ensure_authority
from support.blocks.block_commands import BlockCommands, in_folder
from support.object_stores import S3
from tools.servers.postgres import PostgresServer

PASSWORD = "hunter2-and-more"
INDEX = f"postgresql://somebody:{PASSWORD}@127.0.0.1:1/blocks"


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_options, "PATIENCE", 0.0)


def run(*args: str | Path, **environment: str) -> Result:
    result = CliRunner().invoke(group, [str(arg) for arg in args], env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert PASSWORD not in result.output
    return result


def policy(url: str, *, name: str = "blocks") -> dict[str, object]:
    store = {"blockStore": {"url": url, "index": {"secretName": "index"}}}
    return {
        "apiVersion": "compaction.dev/v1alpha1",
        "kind": "CompactionPolicy",
        "metadata": {"name": name},
        "spec": {"store": store},
    }


def secret(url: str, *, encoded: bool = False) -> dict[str, object]:
    values = {"data": {"url": base64.b64encode(url.encode()).decode()}} if encoded else {"stringData": {"url": url}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "index"}, **values}


def written(path: Path, *documents: object) -> Path:
    path.write_text(yaml.safe_dump_all(documents))
    return path


def test_no_store_is_wrong_usage() -> None:
    result = run("list")
    assert result.exit_code == 2
    assert "Give --store FOLDER" in result.stderr


def test_a_registration_begins_no_store_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    result = run("register", "x.parquet", "--tenant", "t", "--store", tmp_path / "typo")
    assert result.exit_code == 1
    assert "folder not found" in result.stderr
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize("name", ["with space", "ünï", "a#b", "50%", "q?"])
def test_folders_of_any_name_hold_a_store(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    blocks = in_folder(folder)
    path = blocks.write(1)
    result = run("register", path, "--tenant", "acme", "--store", folder)
    if name == "q?":
        assert result.exit_code == 2
        assert "give --index too" in result.stderr
        return
    assert result.exit_code == 0, result.output
    assert "1 block," in run("list", "--store", folder).stdout
    assert run("plan", "--all", "--store", folder).exit_code == 0
    assert run("register", folder / path, "--tenant", "acme", "--store", folder.as_uri()).exit_code == 0


def test_an_object_store_needs_its_index() -> None:
    result = run("list", "--store", "s3://bucket/prefix")
    assert result.exit_code == 2
    assert "COMPACTION_INDEX_URL" in result.stderr


def test_a_password_on_the_command_line_is_refused_and_not_repeated() -> None:
    secrets = (INDEX, f"postgresql:///blocks?host=h&user=somebody&password={PASSWORD}")
    for url in secrets:
        result = run("list", "--store", "s3://bucket", "--index", url)
        assert result.exit_code == 2
        assert "COMPACTION_INDEX_URL" in result.stderr
    assert run("list", "--store", f"s3://key:{PASSWORD}@bucket", "--index", "sqlite:///x").exit_code == 1


def test_an_index_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    result = run("list", "--store", tmp_path, COMPACTION_INDEX_URL=INDEX)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line == (
        'error: Index database "blocks" at 127.0.0.1:1 refused the connection. Check the URL in COMPACTION_INDEX_URL.'
    )


@pytest.mark.parametrize("url", ["mysql://host/x", "no url", "sqlite://", f"postgresql://u:{PASSWORD}@host:port/x"])
def test_what_cannot_be_an_index_is_said_without_quoting_it(url: str, tmp_path: Path) -> None:
    result = run("list", "--store", tmp_path, COMPACTION_INDEX_URL=url)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: index: ")


def test_options_come_from_a_file_and_are_named_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    index = {"COMPACTION_INDEX_URL": f"sqlite:///{tmp_path}/index.db", "COMPACTION_STORE_OPTIONS_FILE": str(file)}
    for text, said in (
        (f"secret_access_key: [{PASSWORD}]", "option secret_access_key has no plain value"),
        (PASSWORD, "holds no options"),
        (f"secret_access_key: *{PASSWORD}", "neither YAML nor JSON (line 1)"),
        (f"endpoint: x: {PASSWORD}", "neither YAML nor JSON (line 1)"),
        (f"no_such_option: {PASSWORD}", "option 'no_such_option' is not one of this store"),
    ):
        file.write_text(text)
        result = run("register", "x", "--tenant", "t", "--store", "s3://bucket", **index)
        assert result.exit_code == 1
        assert said in result.stderr
    file.unlink()
    assert "No such file" in run("list", "--store", "s3://bucket", **index).stderr


def test_a_policy_brings_its_secrets(blocks: BlockCommands, tmp_path: Path) -> None:
    ids = blocks.add(1, 2)
    url = Path(blocks.connection.url).as_uri()
    for encoded in (False, True):
        file = written(tmp_path / "policy.yaml", policy(url), secret(blocks.connection.index_url, encoded=encoded))
        result = run("list", "-f", file)
        assert result.exit_code == 0, result.output
        assert all(item in result.stdout for item in ids)
    mounted = tmp_path / "secrets" / "index"
    mounted.mkdir(parents=True)
    (mounted / "url").write_text(blocks.connection.index_url + "\n")
    alone = written(tmp_path / "alone.yaml", policy(url))
    assert run("list", "-f", alone, "--secrets-dir", tmp_path / "secrets").exit_code == 0
    missing = run("list", "-f", alone)
    assert missing.exit_code == 1
    assert 'Secret "index"' in missing.stderr
    assert f"not found in {alone}" in missing.stderr


def test_a_policy_brings_its_authorities(s3: S3, tmp_path: Path) -> None:
    """In a ConfigMap beside it: commands open the store with them, and so do the jobs that they run."""
    url, index_url = f"{s3.bucket()}/blocks", f"sqlite:///{tmp_path}/index.db"
    BlockStore.open(BlockStoreConnection(url, index_url, s3.gateway.options())).close()
    mine = policy(url)
    store = {"credentialsSecretName": "store", "caBundle": {"configMapName": "trust"}}
    mine["spec"]["store"]["blockStore"] |= store  # type: ignore[index]
    options = {"kind": "Secret", "metadata": {"name": "store"}, "stringData": s3.gateway.options()}
    authorities = ensure_authority(tmp_path / "authority").ca.read_text()
    trust = {"kind": "ConfigMap", "metadata": {"name": "trust"}, "data": {"ca.crt": authorities}}
    index = secret(index_url)
    file = written(tmp_path / "policy.yaml", mine, index, options, trust)
    for command in ("list", "compact"):
        done = run(command, "-f", file)
        assert done.exit_code == 0, done.output
    for wrong, says in ((None, f'ConfigMap "trust" not found in {file}'), ("x", "ConfigMap trust: it holds no certif")):
        more = () if wrong is None else (trust | {"data": {"ca.crt": wrong}},)
        refused = run("compact", "-f", written(file, mine, index, options, *more))
        assert refused.exit_code == 1
        assert says in refused.stderr


def test_a_policy_and_a_store_are_one_too_many(blocks: BlockCommands, tmp_path: Path) -> None:
    blocks.add(1)
    url = Path(blocks.connection.url).as_uri()
    file = written(tmp_path / "policy.yaml", policy(url), secret(blocks.connection.index_url))
    assert "leave out --store" in run("list", "-f", file, "--store", tmp_path).stderr
    assert run("list", "-f", file, COMPACTION_STORE_URL=str(tmp_path)).exit_code == 0


def test_policies_that_cannot_be_used_are_wrong_usage(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    two = written(
        tmp_path / "two.yaml", policy(url, name="a"), policy(url, name="b"), secret(f"sqlite:///{tmp_path}/x")
    )
    logs = policy(url) | {"spec": {"store": {"segmentLogs": {"root": "/data"}}}}
    for args, said in (
        ((two,), "choose one with --policy: a, b"),
        ((two, "--policy", "c"), "no policy c"),
        ((written(tmp_path / "logs.yaml", logs),), "is not one of a block store"),
    ):
        result = run("list", "-f", *args)
        assert result.exit_code == 2
        assert said in result.stderr


def test_secrets_that_are_none_are_named_without_their_values(tmp_path: Path) -> None:
    def said(text: str) -> str:
        file = tmp_path / "policy.yaml"
        file.write_text(yaml.safe_dump(policy(tmp_path.as_uri())) + "---\n" + text)
        result = run("list", "-f", file)
        assert result.exit_code == 2
        return result.stderr

    head = "kind: Secret\nmetadata: {name: index}\n"
    assert "data.url: must be base64" in said(f"{head}data: {{url: {PASSWORD}}}\n")
    assert "stringData.url: must be text" in said(f"{head}stringData: {{url: [{PASSWORD}]}}\n")
    assert "metadata.name: is required" in said("kind: Secret\n")
    for broken in (f"url: *{PASSWORD}", f"url: !{PASSWORD} x", f"url: a: {PASSWORD}", f'url: "{PASSWORD}'):
        assert "not valid YAML: see line" in said(f"{head}stringData:\n  {broken}\n")


def test_the_index_of_another_store_is_refused(blocks: BlockCommands, tmp_path: Path) -> None:
    blocks.add(1)
    (tmp_path / "other").mkdir()
    result = run("list", "--store", tmp_path / "other", "--index", blocks.connection.index_url)
    assert result.exit_code == 1
    assert "_compaction/identity" in result.stderr


def test_a_refused_login_of_the_index_is_told_without_the_password(tmp_path: Path, postgres: PostgresServer) -> None:
    url = postgres.url(postgres.create())
    wrong = url.replace(postgres.password, PASSWORD)
    result = run("list", "--store", tmp_path, COMPACTION_INDEX_URL=wrong)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert "refused the login (" in line
    assert "Check the URL in COMPACTION_INDEX_URL." in line
    nowhere = run("list", "--store", tmp_path, COMPACTION_INDEX_URL=url.replace("test_", "no_such_"))
    assert nowhere.exit_code == 1
    assert postgres.password not in nowhere.output


def test_credentials_that_the_object_store_refuses_are_told_without_them(tmp_path: Path, s3: S3) -> None:
    options = dict(s3.gateway.options()) | {"secret_access_key": PASSWORD}
    file = tmp_path / "options.yaml"
    environment = {
        "COMPACTION_STORE_URL": f"{s3.bucket()}/blocks",
        "COMPACTION_INDEX_URL": f"sqlite:///{tmp_path}/index.db",
        "COMPACTION_STORE_OPTIONS_FILE": str(file),
    }
    file.write_text(yaml.safe_dump(options))
    refused = run("register", "x.parquet", "--tenant", "t", **environment)
    assert refused.exit_code == 1
    assert f"{environment['COMPACTION_STORE_URL']}: access denied (SignatureDoesNotMatch). " in refused.stderr
    assert f"Check the keys in {file} and the bucket policy." in refused.stderr
    file.write_text(yaml.safe_dump(dict(s3.gateway.options()) | {"region": "eu-central-1"}))
    elsewhere = run("register", "x.parquet", "--tenant", "t", **environment)
    assert elsewhere.stderr == (
        f"error: {environment['COMPACTION_STORE_URL']}: the region is not that of the bucket, which is in us-east-1. "
        f'Correct "region" in {file}.\n'
    )
    file.write_text(yaml.safe_dump(options | {"endpoint": "http://127.0.0.1:1"}))
    away = run("register", "x.parquet", "--tenant", "t", **environment)
    assert away.exit_code == 1
    assert away.stderr == (
        f"error: {environment['COMPACTION_STORE_URL']}: http://127.0.0.1:1 gave no usable answer (connection refused). "
        f'Check "endpoint" in {file} and the network.\n'
    )
    file.write_text(yaml.safe_dump(s3.gateway.options()))
    no_bucket = run("register", "x", "--tenant", "t", **environment | {"COMPACTION_STORE_URL": "s3://no-such-bucket"})
    assert no_bucket.exit_code == 1
    assert "NoSuchBucket" in no_bucket.stderr
