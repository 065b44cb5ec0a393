//! Table of all endpoints: the router serves it, requests are validated against it, and `/openapi.json` is generated
//! from it.

mod openapi;

use std::sync::Arc;

use futures::future::BoxFuture;

use crate::access::Role;
use crate::answers::Reply;
use crate::app::{App, Call, CostClass};
use crate::failure::{Failure, Result};
use crate::front_ends::handlers as front_ends;
use crate::parameters::Parameters;
use crate::{datasets, grafana, operation, reads, tags, writes};

pub(crate) type Handler = fn(Arc<App>, Call) -> BoxFuture<'static, Result<Reply>>;

/// One HTTP method of one path.
pub(crate) struct Endpoint {
    pub method: &'static str,
    pub path: &'static str,
    pub role: Role,
    pub work: CostClass,
    pub summary: &'static str,
    pub parameters: &'static [Parameter],
    /// The schema name of a JSON body (empty if JSON is not accepted), and the other content types accepted.
    pub takes: Option<(&'static str, &'static [&'static str])>,
    pub gives: ResponseContent,
    pub handler: Handler,
}

/// What a response contains.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ResponseContent {
    /// Rows with columns of this schema, in any format.
    Rows(&'static str),
    /// The same, or the documents of these rows as they were stored.
    Documents(&'static str),
    /// JSON of this schema.
    Json(&'static str),
    /// Other content of this type.
    Other(&'static str),
    /// No content: status 204.
    Nothing,
}

/// A query parameter.
pub(crate) struct Parameter {
    pub name: &'static str,
    pub kind: &'static str,
    pub required: bool,
    pub repeated: bool,
    pub about: &'static str,
}

const fn may(name: &'static str, kind: &'static str, about: &'static str) -> Parameter {
    Parameter { name, kind, required: false, repeated: false, about }
}

const fn must(name: &'static str, about: &'static str) -> Parameter {
    Parameter { name, kind: "string", required: true, repeated: false, about }
}

const fn many(name: &'static str, kind: &'static str, about: &'static str) -> Parameter {
    Parameter { name, kind, required: false, repeated: true, about }
}

const TAG: Parameter = many("tag", "string", "Name of a tag; repeatable.");
const NUMBER: Parameter = many("number", "integer", "Number of a tag; repeatable.");
const MATCH: Parameter = may("match", "string", "Pattern of names: * stands for any characters, ? for one.");
const START: Parameter = must("start", "Start: ISO 8601 (UTC), nanoseconds since 1970, now, or now-6h.");
const END: Parameter = may("end", "string", "End of the range, exclusive; now by default.");
const FORMAT: Parameter =
    may("format", "string", "json, ndjson, csv, arrow or parquet. Default: the header Accept, else json.");
const STEPPED: Parameter =
    may("stepped", "boolean", "Whether values are constant until the next one; the tag's setting by default.");
const PARTIAL: Parameter =
    may("partial", "boolean", "Store the valid lines and report the others, instead of rejecting all.");
const DEFINE: Parameter = may("define", "boolean", "Define unknown tags, with the type of their first value.");
const NOT_FINITE: Parameter =
    may("not_finite", "string", "How to handle invalid numbers: refuse, or bad to store them as Bad.");
const PRECISION: Parameter =
    may("precision", "string", "Unit of times: ns, us, ms or s; also n, u, m and h as in version 1.");

const AGGREGATE: &[Parameter] = &[
    TAG,
    NUMBER,
    MATCH,
    START,
    END,
    must("aggregate", "An aggregate of OPC UA Part 13, or Percentile, Rate, Distinct."),
    may("interval", "string", "Length of an interval, such as 1h; the whole range by default."),
    STEPPED,
    may("treat_uncertain_as_bad", "boolean", "Treat Uncertain as Bad; the tag's setting by default."),
    may("percent_good", "number", "Least percentage of Good for a Good result."),
    may("percent_bad", "number", "Least percentage of Bad for a Bad result."),
    may("sloped_extrapolation", "boolean", "Extrapolate after the last point along the last line."),
    may("percent", "number", "Percentile to compute; 50 by default."),
    may(
        "rules",
        "string",
        "samples, or standard to follow the text of the standard where published samples depart from it.",
    ),
    may("points_only", "boolean", "Compute from points only, without hourly statistics."),
    FORMAT,
];

macro_rules! handler {
    ($function:path) => {
        |app, call| Box::pin($function(app, call))
    };
}

macro_rules! front_end {
    ($function:path, $operation:literal) => {
        |app, call| Box::pin($function(app, call, $operation))
    };
}

/// Parameters of queries to front ends; the front end parses the conditions.
const FROM: Parameter = may("start", "string", "Start: ISO 8601 (UTC), nanoseconds since 1970, now, or now-6h.");
const UNTIL: Parameter = may("end", "string", "End of the range, exclusive.");
const WHERE: Parameter = many(
    "where",
    "string",
    "A condition on any column: status>=500, user=ann, level in error,fatal, message contains timeout; or as JSON \
     [\"user\", \"==\", \"ann\"]. May be repeated.",
);
const COLUMNS: Parameter = may("columns", "string", "Column names separated by commas; all by default.");
const STREAM: Parameter = many("stream", "string", "Only this stream; repeatable.");
const TEXT_WITHIN: Parameter = may("text", "string", "Text that the document must contain, literally.");
const DAYS: Parameter = may("days", "string", "Whole days (UTC): one, FIRST,LAST, or a number of days up to today.");

const TEXT: &[&str] = &["text/csv", "application/vnd.apache.arrow.stream"];
const LINES: Option<(&str, &[&str])> = Some(("", &["text/plain"]));

pub(crate) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: "POST",
        path: "/v1/points",
        role: Role::Write,
        work: CostClass::Write,
        summary: "Store points. They are durable when the answer arrives.",
        parameters: &[
            PARTIAL,
            DEFINE,
            NOT_FINITE,
            may("batch", "string", "Batch name: repeating the same points under it stores them once."),
            may("replace", "boolean", "Replace points stored under this name."),
        ],
        takes: Some(("PointsIn", TEXT)),
        gives: ResponseContent::Json("WriteReport"),
        handler: handler!(writes::points),
    },
    Endpoint {
        method: "GET",
        path: "/v1/points",
        role: Role::Read,
        work: CostClass::Query,
        summary: "Stored points of tags, by tag, then time.",
        parameters: &[
            TAG,
            NUMBER,
            MATCH,
            START,
            END,
            may("bounds", "boolean", "Include the last point before the range and the first after it."),
            FORMAT,
        ],
        takes: None,
        gives: ResponseContent::Rows("Points"),
        handler: handler!(reads::raw),
    },
    Endpoint {
        method: "DELETE",
        path: "/v1/points",
        role: Role::Admin,
        work: CostClass::Write,
        summary: "Delete the points of a tag in a range.",
        parameters: &[TAG, NUMBER, START, must("end", "End of the range, exclusive.")],
        takes: None,
        gives: ResponseContent::Json("Deleted"),
        handler: handler!(writes::delete),
    },
    Endpoint {
        method: "GET",
        path: "/v1/latest",
        role: Role::Read,
        work: CostClass::Lookup,
        summary: "The newest point of each tag.",
        parameters: &[TAG, NUMBER, MATCH, FORMAT],
        takes: None,
        gives: ResponseContent::Rows("Points"),
        handler: handler!(reads::latest),
    },
    Endpoint {
        method: "GET",
        path: "/v1/at",
        role: Role::Read,
        work: CostClass::Query,
        summary: "Values at given times, interpolated between points.",
        parameters: &[
            TAG,
            NUMBER,
            MATCH,
            Parameter { required: true, ..many("time", "string", "A time; repeatable.") },
            STEPPED,
            FORMAT,
        ],
        takes: None,
        gives: ResponseContent::Rows("Points"),
        handler: handler!(reads::at),
    },
    Endpoint {
        method: "GET",
        path: "/v1/aggregate",
        role: Role::Read,
        work: CostClass::Query,
        summary: "An aggregate for each tag and interval.",
        parameters: AGGREGATE,
        takes: None,
        gives: ResponseContent::Rows("Points"),
        handler: handler!(reads::aggregate),
    },
    Endpoint {
        method: "GET",
        path: "/v1/plot",
        role: Role::Read,
        work: CostClass::Query,
        summary: "Points of a tag, reduced for a plot.",
        parameters: &[
            TAG,
            NUMBER,
            START,
            END,
            may("points", "integer", "Approximate number of points; 1000 by default."),
            may("method", "string", "minmax, which keeps every spike, or lttb."),
            FORMAT,
        ],
        takes: None,
        gives: ResponseContent::Rows("Points"),
        handler: handler!(reads::plot),
    },
    Endpoint {
        method: "GET",
        path: "/v1/annotations",
        role: Role::Read,
        work: CostClass::Query,
        summary: "Annotations of tags in a range.",
        parameters: &[TAG, NUMBER, MATCH, START, END, FORMAT],
        takes: None,
        gives: ResponseContent::Rows("Annotations"),
        handler: handler!(reads::annotations),
    },
    Endpoint {
        method: "POST",
        path: "/v1/annotations",
        role: Role::Write,
        work: CostClass::Write,
        summary: "Annotate a tag at a time.",
        parameters: &[],
        takes: Some(("AnnotationIn", &[])),
        gives: ResponseContent::Nothing,
        handler: handler!(writes::annotate),
    },
    Endpoint {
        method: "GET",
        path: "/v1/tags",
        role: Role::Read,
        work: CostClass::Lookup,
        summary: "Tags by name.",
        parameters: &[MATCH, TAG, NUMBER, may("limit", "integer", "Most tags to return; 1000 by default.")],
        takes: None,
        gives: ResponseContent::Json("Tags"),
        handler: handler!(tags::list),
    },
    Endpoint {
        method: "POST",
        path: "/v1/tags",
        role: Role::Admin,
        work: CostClass::Write,
        summary: "Define tags or change definitions, all or none.",
        parameters: &[],
        takes: Some(("TagsIn", &[])),
        gives: ResponseContent::Json("Tags"),
        handler: handler!(tags::define),
    },
    Endpoint {
        method: "GET",
        path: "/v1/tags/{name}",
        role: Role::Read,
        work: CostClass::Lookup,
        summary: "A tag.",
        parameters: &[],
        takes: None,
        gives: ResponseContent::Json("Tag"),
        handler: handler!(tags::one),
    },
    Endpoint {
        method: "GET",
        path: "/v1/groups",
        role: Role::Read,
        work: CostClass::Lookup,
        summary: "Groups of tags that have points.",
        parameters: &[],
        takes: None,
        gives: ResponseContent::Json("Groups"),
        handler: handler!(tags::groups),
    },
    Endpoint {
        method: "PUT",
        path: "/v1/groups/{group}",
        role: Role::Admin,
        work: CostClass::Write,
        summary: "Set the age past which points of a group may be dropped.",
        parameters: &[],
        takes: Some(("Retention", &[])),
        gives: ResponseContent::Nothing,
        handler: handler!(tags::set_retention),
    },
    Endpoint {
        method: "POST",
        path: "/v1/groups/{group}/retire",
        role: Role::Admin,
        work: CostClass::Maintenance,
        summary: "Drop the points of a group that are older than its retention.",
        parameters: &[may("dry_run", "boolean", "Count the points; drop nothing.")],
        takes: None,
        gives: ResponseContent::Json("Retired"),
        handler: handler!(tags::retire),
    },
    Endpoint {
        method: "POST",
        path: "/v1/maintain",
        role: Role::Admin,
        work: CostClass::Maintenance,
        summary: "Merge small chunks and compute hourly statistics.",
        parameters: &[],
        takes: None,
        gives: ResponseContent::Json("Maintained"),
        handler: handler!(tags::maintain),
    },
    Endpoint {
        method: "GET",
        path: "/v1/datasets",
        role: Role::Read,
        work: CostClass::Lookup,
        summary: "The datasets of the archive.",
        parameters: &[],
        takes: None,
        gives: ResponseContent::Json("Datasets"),
        handler: handler!(datasets::list),
    },
    Endpoint {
        method: "GET",
        path: "/v1/datasets/{name}",
        role: Role::Read,
        work: CostClass::Lookup,
        summary: "Definition and size of a dataset, by slice.",
        parameters: &[],
        takes: None,
        gives: ResponseContent::Json("DatasetState"),
        handler: handler!(datasets::state),
    },
    Endpoint {
        method: "GET",
        path: "/v1/datasets/{name}/read",
        role: Role::Read,
        work: CostClass::Query,
        summary: "Records of any dataset: jobs, events, detections and all others.",
        parameters: &[
            may("start", "string", "Start of the period."),
            may("end", "string", "End of the range, exclusive."),
            may("columns", "string", "Column names separated by commas; all by default."),
            many(
                "where",
                "string",
                "A condition such as site==CERN, cores>=8, user in ann,bob, line contains refused, name prefix ZTF18, line \
             matches ^a.*b or mag exists; repeatable.",
            ),
            many("cell", "integer", "Number of a cell; repeatable."),
            many("key", "string", "Value of the dataset's cell column; repeatable."),
            many("id", "string", "Value of the first id column; repeatable."),
            may("region", "string", "circle,RA,DEC,RADIUS in degrees, for datasets of the sky."),
            may("history", "boolean", "All versions instead of the newest."),
            may("limit", "integer", "Most rows to return."),
            FORMAT,
        ],
        takes: None,
        gives: ResponseContent::Rows("Records"),
        handler: handler!(datasets::read),
    },
    Endpoint {
        method: "POST",
        path: "/v1/events/{name}",
        role: Role::Write,
        work: CostClass::Write,
        summary: "Store lines as documents. They are durable when the answer arrives; invalid lines become dead \
                  letters. Repeated under the same batch, or else the same X-Request-Id, lines are stored once.",
        parameters: &[
            may("format", "string", "ndjson (default), syslog, or lines that the pattern parses."),
            may("pattern", "string", "For lines: regular expression with groups named time, stream and fields."),
            may("time_field", "string", "For JSON: path of the time; by default as the archive was created."),
            may("time_format", "string", "iso8601, epoch_s, epoch_ms, epoch_us, epoch_ns, or a strptime pattern."),
            may("year", "integer", "Year of times without one."),
            may("stream_field", "string", "Source of the stream name: a path, host, app, or a group."),
            may("stream", "string", "Stream of documents that name none."),
            may("source", "string", "Source of the lines, stored with each; http by default."),
            may("ttl", "string", "The documents' own TTL, such as 30d, instead of the archive's."),
            may("batch", "string", "Batch name."),
        ],
        takes: Some(("", &["application/x-ndjson", "text/plain"])),
        gives: ResponseContent::Json("EventsReport"),
        handler: front_end!(front_ends::store, "events.ingest"),
    },
    Endpoint {
        method: "GET",
        path: "/v1/events/{name}",
        role: Role::Read,
        work: CostClass::Query,
        summary: "Documents of events by time, stream, field and text, the newest first.",
        parameters: &[
            FROM,
            UNTIL,
            STREAM,
            WHERE,
            TEXT_WITHIN,
            may("columns", "string", "Column names separated by commas; time, stream, the fields and body by default."),
            may("limit", "integer", "Most rows to return, 1 to 100000; 100 by default."),
            may("oldest_first", "boolean", "Oldest first; the limit then keeps the oldest documents."),
            may(
                "format",
                "string",
                "json, ndjson, csv, arrow or parquet, or raw for the documents themselves, a line each; else what the \
                 header Accept asks for, else json.",
            ),
        ],
        takes: None,
        gives: ResponseContent::Documents("Records"),
        handler: front_end!(front_ends::search, "events.search"),
    },
    Endpoint {
        method: "GET",
        path: "/v1/events/{name}/count",
        role: Role::Read,
        work: CostClass::Query,
        summary: "Number of documents of events.",
        parameters: &[FROM, UNTIL, STREAM, WHERE, TEXT_WITHIN],
        takes: None,
        gives: ResponseContent::Json("Count"),
        handler: front_end!(front_ends::ask, "events.count"),
    },
    Endpoint {
        method: "GET",
        path: "/v1/events/{name}/histogram",
        role: Role::Read,
        work: CostClass::Query,
        summary: "Documents of events over time, in intervals counted from 1970.",
        parameters: &[
            FROM,
            UNTIL,
            STREAM,
            WHERE,
            TEXT_WITHIN,
            may("interval", "string", "Length of an interval, such as 15m; 1h by default."),
            may("by", "string", "Columns separated by commas, whose values are counted by themselves."),
            FORMAT,
        ],
        takes: None,
        gives: ResponseContent::Rows("Records"),
        handler: front_end!(front_ends::ask, "events.histogram"),
    },
    Endpoint {
        method: "GET",
        path: "/v1/events/{name}/dead",
        role: Role::Read,
        work: CostClass::Query,
        summary: "Rejected lines of events with the reason, the newest first.",
        parameters: &[
            FROM,
            UNTIL,
            may("limit", "integer", "Most rows to return, 1 to 100000; 100 by default."),
            FORMAT,
        ],
        takes: None,
        gives: ResponseContent::Rows("Records"),
        handler: front_end!(front_ends::ask, "events.dead"),
    },
    Endpoint {
        method: "GET",
        path: "/v1/jobs/{name}",
        role: Role::Read,
        work: CostClass::Query,
        summary: "Jobs by id, or by period and any column.",
        parameters: &[
            many("id", "integer", "Id of a job, whenever it ran; repeatable. Cannot be combined with conditions."),
            FROM,
            UNTIL,
            DAYS,
            WHERE,
            COLUMNS,
            may("history", "boolean", "All states of each job instead of the newest."),
            may("limit", "integer", "Most rows to return."),
            FORMAT,
        ],
        takes: None,
        gives: ResponseContent::Rows("Records"),
        handler: front_end!(front_ends::ask, "jobs.find"),
    },
    Endpoint {
        method: "GET",
        path: "/v1/jobs/{name}/count",
        role: Role::Read,
        work: CostClass::Query,
        summary: "Number of jobs.",
        parameters: &[FROM, UNTIL, DAYS, WHERE],
        takes: None,
        gives: ResponseContent::Json("Count"),
        handler: front_end!(front_ends::ask, "jobs.count"),
    },
    Endpoint {
        method: "GET",
        path: "/v1/jobs/{name}/group",
        role: Role::Read,
        work: CostClass::Query,
        summary: "Jobs counted by the values of columns, the most frequent first.",
        parameters: &[
            must("by", "Columns separated by commas."),
            many(
                "aggregate",
                "string",
                "A function of a column: sum(run_s), or mean, min, max, stddev, count_distinct.",
            ),
            FROM,
            UNTIL,
            DAYS,
            WHERE,
            may("limit", "integer", "Most rows to return."),
            FORMAT,
        ],
        takes: None,
        gives: ResponseContent::Rows("Records"),
        handler: front_end!(front_ends::ask, "jobs.group"),
    },
    Endpoint {
        method: "GET",
        path: "/v1/jobs/{name}/explain",
        role: Role::Read,
        work: CostClass::Lookup,
        summary: "How a search for jobs uses an index, or how a count does.",
        parameters: &[
            may("by", "string", "Of a count: columns it is grouped by, separated by commas; empty for none."),
            FROM,
            UNTIL,
            DAYS,
            WHERE,
        ],
        takes: None,
        gives: ResponseContent::Json("IndexUse"),
        handler: front_end!(front_ends::ask, "jobs.explain"),
    },
    Endpoint {
        method: "POST",
        path: "/api/v2/write",
        role: Role::Write,
        work: CostClass::Write,
        summary: "InfluxDB line protocol as clients of version 2 send it.",
        parameters: &[
            PRECISION,
            PARTIAL,
            DEFINE,
            may("org", "string", "Accepted and ignored."),
            may("orgID", "string", "Accepted and ignored."),
            may("bucket", "string", "Accepted and ignored."),
        ],
        takes: LINES,
        gives: ResponseContent::Nothing,
        handler: handler!(writes::line_protocol),
    },
    Endpoint {
        method: "POST",
        path: "/write",
        role: Role::Write,
        work: CostClass::Write,
        summary: "InfluxDB line protocol as clients of version 1 send it.",
        parameters: &[
            PRECISION,
            PARTIAL,
            DEFINE,
            may("db", "string", "Accepted and ignored."),
            may("rp", "string", "Accepted and ignored."),
            may("consistency", "string", "Accepted and ignored."),
        ],
        takes: LINES,
        gives: ResponseContent::Nothing,
        handler: handler!(writes::line_protocol),
    },
    Endpoint {
        method: "POST",
        path: "/api/v1/write",
        role: Role::Write,
        work: CostClass::Write,
        summary: "Prometheus remote write, version 1.",
        parameters: &[PARTIAL, DEFINE],
        takes: Some(("", &["application/x-protobuf"])),
        gives: ResponseContent::Nothing,
        handler: handler!(writes::remote_write),
    },
    Endpoint {
        method: "GET",
        path: "/grafana/",
        role: Role::Read,
        work: CostClass::Light,
        summary: "Whether this is a data source of Grafana.",
        parameters: &[],
        takes: None,
        gives: ResponseContent::Other("text/plain"),
        handler: handler!(grafana::test),
    },
    Endpoint {
        method: "POST",
        path: "/grafana/search",
        role: Role::Read,
        work: CostClass::Lookup,
        summary: "Names of tags for Grafana.",
        parameters: &[],
        takes: Some(("GrafanaSearch", &[])),
        gives: ResponseContent::Json("GrafanaNames"),
        handler: handler!(grafana::search),
    },
    Endpoint {
        method: "POST",
        path: "/grafana/query",
        role: Role::Read,
        work: CostClass::Query,
        summary: "Series and tables for Grafana.",
        parameters: &[],
        takes: Some(("GrafanaQuery", &[])),
        gives: ResponseContent::Json("GrafanaSeries"),
        handler: handler!(grafana::query),
    },
    Endpoint {
        method: "POST",
        path: "/grafana/annotations",
        role: Role::Read,
        work: CostClass::Query,
        summary: "Notes for Grafana.",
        parameters: &[],
        takes: Some(("GrafanaAnnotations", &[])),
        gives: ResponseContent::Json("GrafanaNotes"),
        handler: handler!(grafana::annotations),
    },
    Endpoint {
        method: "GET",
        path: "/metrics",
        role: Role::Read,
        work: CostClass::Light,
        summary: "Figures of the service for Prometheus.",
        parameters: &[],
        takes: None,
        gives: ResponseContent::Other("text/plain; version=0.0.4"),
        handler: handler!(operation::metrics),
    },
    Endpoint {
        method: "GET",
        path: "/health",
        role: Role::Open,
        work: CostClass::Light,
        summary: "Whether the process serves.",
        parameters: &[],
        takes: None,
        gives: ResponseContent::Json("State"),
        handler: handler!(operation::health),
    },
    Endpoint {
        method: "GET",
        path: "/ready",
        role: Role::Open,
        work: CostClass::Light,
        summary: "Whether the archive answers and the service is not about to stop.",
        parameters: &[],
        takes: None,
        gives: ResponseContent::Json("State"),
        handler: handler!(operation::ready),
    },
    Endpoint {
        method: "GET",
        path: "/openapi.json",
        role: Role::Open,
        work: CostClass::Light,
        summary: "This description.",
        parameters: &[],
        takes: None,
        gives: ResponseContent::Json("OpenApi"),
        handler: handler!(openapi::reply),
    },
    Endpoint {
        method: "GET",
        path: "/",
        role: Role::Open,
        work: CostClass::Light,
        summary: "A page to find and plot tags.",
        parameters: &[
            many("tag", "string", "Name of a tag to show; repeatable."),
            may("start", "string", "First time to show."),
            may("end", "string", "First time behind."),
            may(
                "live",
                "integer",
                "Length of a view that follows the time, in milliseconds, instead of start and end.",
            ),
            may("aggregate", "string", "Aggregate to show instead of the points."),
            may("interval", "string", "Length of its intervals."),
            may("zone", "string", "local, for the browser's time zone; else UTC."),
        ],
        takes: None,
        gives: ResponseContent::Other("text/html; charset=utf-8"),
        handler: handler!(operation::page),
    },
    Endpoint {
        method: "GET",
        path: "/page.js",
        role: Role::Open,
        work: CostClass::Light,
        summary: "The page's script.",
        parameters: &[],
        takes: None,
        gives: ResponseContent::Other("text/javascript; charset=utf-8"),
        handler: handler!(operation::page_script),
    },
    Endpoint {
        method: "GET",
        path: "/page.css",
        role: Role::Open,
        work: CostClass::Light,
        summary: "The page's style.",
        parameters: &[],
        takes: None,
        gives: ResponseContent::Other("text/css; charset=utf-8"),
        handler: handler!(operation::page_style),
    },
];

impl Endpoint {
    /// The content types accepted for a body.
    pub fn content_types(&self) -> Vec<&'static str> {
        let Some((schema, others)) = self.takes else { return Vec::new() };
        let json = (!schema.is_empty()).then_some("application/json");
        json.into_iter().chain(others.iter().copied()).collect()
    }

    /// Rejects unknown parameters: ignoring a misspelt one would silently change the result.
    pub fn check(&self, given: &Parameters) -> Result<()> {
        for name in given.names() {
            if !self.parameters.iter().any(|known| known.name == name) {
                let known: Vec<&str> = self.parameters.iter().map(|parameter| parameter.name).collect();
                let known = if known.is_empty() { "nothing".to_owned() } else { known.join(", ") };
                return Err(Failure::invalid(format!("{} does not know {name:?}: it takes {known}", self.path)));
            }
        }
        for needed in self.parameters.iter().filter(|parameter| parameter.required) {
            if given.all(needed.name).next().is_none() {
                return Err(Failure::invalid(format!("{} is missing: {}", needed.name, needed.about)));
            }
        }
        Ok(())
    }
}
