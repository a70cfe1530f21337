"""Values for TensorBoard that are no scalars: texts, pictures, the layout of Custom Scalars, hyper-parameters.

The protocol buffers are those of the tensorboard package, which is imported with the first use.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeAlias

from chicle_elastic.errors import MissingExtraError
from chicle_elastic.surroundings import in_some_folder

HyperParameter: TypeAlias = bool | float | str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of Custom Scalars."""

    title: str  # above it
    tags: str  # regular expression; every scalar whose tag it matches is a curve of this chart
    # tags of the middle, lower and upper edge of a band, in place of curves; empty for none
    band: tuple[str, str, str] | tuple[()] = ()


LAYOUT: dict[str, tuple[Chart, ...]] = {
    "Model": (
        Chart("gap, as a power of ten", r"log10/.*$"),
        Chart("objective", r"model/objective.*$"),
        Chart("loss", r"model/.*loss.*$"),
        Chart("validation score", r"model/validation_score$"),
        Chart("objective and loss by samples", r"model_by_samples/(objective|.*loss.*)$"),
    ),
    "Nodes": (
        Chart("chunks of each node", r"chunks/.+$"),
        Chart("seconds of each node", r"seconds/.+$"),
        Chart(
            "seconds: slowest, median and fastest node",
            r"nodes/seconds_median$",
            ("nodes/seconds_median", "nodes/seconds_min", "nodes/seconds_max"),
        ),
        Chart(
            "chunks: most, median and least of a node",
            r"nodes/chunks_median$",
            ("nodes/chunks_median", "nodes/chunks_min", "nodes/chunks_max"),
        ),
    ),
    "Job": (
        Chart("members and tasks", r"job/(members|num_tasks)$"),
        Chart("seconds from iteration to iteration", r"job/iteration_s$"),
        Chart("phases of changes of the membership, ms", r"transition/.+$"),
        Chart("bytes moved, and of these hidden behind iterations", r"bytes/.+$"),
        Chart("what policies have set", r"parameters/.+$"),
    ),
}


def layout_of(tags: Collection[str]) -> dict[str, tuple[Chart, ...]]:
    """The charts of `LAYOUT` that have a curve, by category: an empty chart tells nothing."""
    found = {
        category: tuple(chart for chart in charts if any(re.match(chart.tags, tag) for tag in tags))
        for category, charts in LAYOUT.items()
    }
    return {category: charts for category, charts in found.items() if charts}


class Values:
    """Makes values of a summary."""

    def __init__(self, protos: SimpleNamespace) -> None:
        self._protos = protos

    def scalar(self, tag: str, value: float) -> Any:
        """A value of the Scalars tab."""
        return self._protos.Summary.Value(tag=tag, simple_value=value)

    def text(self, tag: str, markdown: str) -> Any:
        """A value of the Text tab."""
        return self._bytes(tag, "text", markdown.encode(), is_vector=True)

    def picture(self, tag: str, png: bytes) -> Any:
        """A value of the Images tab."""
        image = self._protos.Summary.Image(encoded_image_string=png)
        return self._protos.Summary.Value(tag=tag, image=image)

    def layout(self, charts: Mapping[str, tuple[Chart, ...]]) -> Any:
        """The tab Custom Scalars."""
        from tensorboard.plugins.custom_scalar import layout_pb2, metadata

        def chart_of(chart: Chart) -> Any:
            if not chart.band:
                return layout_pb2.Chart(title=chart.title, multiline=layout_pb2.MultilineChartContent(tag=[chart.tags]))
            value, lower, upper = chart.band
            series = layout_pb2.MarginChartContent.Series(value=value, lower=lower, upper=upper)
            return layout_pb2.Chart(title=chart.title, margin=layout_pb2.MarginChartContent(series=[series]))

        categories = [
            layout_pb2.Category(title=title, chart=[chart_of(chart) for chart in group])
            for title, group in charts.items()
        ]
        content = layout_pb2.Layout(category=categories).SerializeToString()
        return self._bytes(metadata.CONFIG_SUMMARY_TAG, metadata.PLUGIN_NAME, content)

    def hyper_parameters(self, run: str, params: Mapping[str, HyperParameter], unix_s: float) -> Any:
        """What a run begins with, for the tab HParams."""
        from tensorboard.plugins.hparams import metadata, plugin_data_pb2

        begun = plugin_data_pb2.SessionStartInfo(group_name=run, start_time_secs=unix_s)
        for name, value in params.items():
            kind = _kind_of(value)
            setattr(begun.hparams[name], f"{kind}_value", value)
        return self._session(metadata.SESSION_START_INFO_TAG, session_start_info=begun)

    def hyper_parameters_end(self, unix_s: float) -> Any:
        """The run has ended."""
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

        ended = plugin_data_pb2.SessionEndInfo(status=api_pb2.STATUS_SUCCESS, end_time_secs=unix_s)
        return self._session(metadata.SESSION_END_INFO_TAG, session_end_info=ended)

    def experiment(self, params: Mapping[str, HyperParameter], results: Collection[str]) -> Any:
        """Which columns the tab HParams has: hyper-parameters, and tags whose last values are the results."""
        from tensorboard.plugins.hparams import api_pb2, metadata

        types = {
            "bool": api_pb2.DATA_TYPE_BOOL,
            "number": api_pb2.DATA_TYPE_FLOAT64,
            "string": api_pb2.DATA_TYPE_STRING,
        }
        experiment = api_pb2.Experiment(
            hparam_infos=[api_pb2.HParamInfo(name=name, type=types[_kind_of(value)]) for name, value in params.items()],
            metric_infos=[
                api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=tag.rpartition("/")[2])
                for tag in results
            ],
        )
        return self._session(metadata.EXPERIMENT_TAG, experiment=experiment)

    def _session(self, tag: str, **content: Any) -> Any:
        from tensorboard.plugins.hparams import metadata, plugin_data_pb2

        data = plugin_data_pb2.HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, **content)
        protos = self._protos
        plugin = protos.SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME, content=data.SerializeToString())
        return protos.Summary.Value(
            tag=tag,
            metadata=protos.SummaryMetadata(plugin_data=plugin),
            tensor=protos.TensorProto(dtype="DT_FLOAT", float_val=[0.0], tensor_shape=protos.TensorShapeProto()),
        )

    def _bytes(self, tag: str, plugin: str, content: bytes, *, is_vector: bool = False) -> Any:
        protos = self._protos
        dims = [protos.TensorShapeProto.Dim(size=1)] if is_vector else []
        return protos.Summary.Value(
            tag=tag,
            metadata=protos.SummaryMetadata(plugin_data=protos.SummaryMetadata.PluginData(plugin_name=plugin)),
            tensor=protos.TensorProto(
                dtype="DT_STRING", string_val=[content], tensor_shape=protos.TensorShapeProto(dim=dims)
            ),
        )


def _kind_of(value: HyperParameter) -> str:
    if isinstance(value, bool):
        return "bool"
    return "string" if isinstance(value, str) else "number"


def plain_parameters(params: Mapping[str, Any]) -> dict[str, HyperParameter]:
    """Parameters as hyper-parameters: numbers, strings and bools as they are, others in words, None left out."""
    found: dict[str, HyperParameter] = {}
    for name, value in params.items():
        if value is None:
            continue
        if isinstance(value, bool | str):
            found[name] = value
        else:
            try:
                found[name] = float(value)
            except (TypeError, ValueError):
                found[name] = getattr(value, "__name__", None) or str(value)[:80]
    return found


def require_tensorboard() -> SimpleNamespace:
    """The names of the package that are used here; imported now, so that the first writer costs nothing. Raises
    MissingExtraError when the package tensorboard is not installed."""
    try:
        with in_some_folder():
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
            from tensorboard.compat.proto.tensor_pb2 import TensorProto
            from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
            from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise MissingExtraError.for_package("tensorboard", extra="tensorboard", purpose="logdir=") from error
    return SimpleNamespace(
        Event=Event,
        Summary=Summary,
        SummaryMetadata=SummaryMetadata,
        TensorProto=TensorProto,
        TensorShapeProto=TensorShapeProto,
        RecordWriter=RecordWriter,
    )
