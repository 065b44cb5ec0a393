//! The layout of a schema: a tree of nodes, one per column and child.

use std::sync::Arc;

use arrow_schema::{DataType, Field, SchemaRef};
use chronotile_types::{SchemaError, normalize_schema};

use crate::number::Number;

/// How the values of a node are stored.
#[derive(Debug)]
pub(crate) enum Kind {
    Bool,
    /// Values of a fixed width in bytes; `number` is their number type, if they are numbers.
    Fixed {
        width: usize,
        number: Option<Number>,
    },
    Var {
        utf8: bool,
    },
    List(Box<Node>),
    Struct(Vec<Node>),
}

/// One column, or one child of a nested column.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    pub(crate) nullable: bool,
    pub(crate) data_type: DataType,
    /// Number of nodes in this subtree.
    pub(crate) node_count: usize,
}

impl Node {
    fn new(field: &Field, path: &str) -> Result<Self, SchemaError> {
        let child = |field: &Field| Node::new(field, &format!("{path}.{}", field.name()));
        let kind = match field.data_type() {
            DataType::Boolean => Kind::Bool,
            DataType::Utf8 => Kind::Var { utf8: true },
            DataType::Binary => Kind::Var { utf8: false },
            DataType::List(item) => Kind::List(Box::new(child(item)?)),
            DataType::Struct(fields) => Kind::Struct(fields.iter().map(|f| child(f)).collect::<Result<_, _>>()?),
            DataType::FixedSizeBinary(width) if *width > 0 => Kind::Fixed { width: *width as usize, number: None },
            DataType::Decimal128(_, _) => Kind::Fixed { width: 16, number: None },
            other => match Number::of(other) {
                Some(number) => Kind::Fixed { width: number.width(), number: Some(number) },
                None => {
                    return Err(SchemaError::Unsupported {
                        column: path.to_owned(),
                        data_type: other.to_string(),
                        hint: "normalize the schema first",
                    });
                }
            },
        };
        let node_count = match &kind {
            Kind::List(item) => 1 + item.node_count,
            Kind::Struct(children) => 1 + children.iter().map(|c| c.node_count).sum::<usize>(),
            _ => 1,
        };
        Ok(Self { kind, nullable: field.is_nullable(), data_type: field.data_type().clone(), node_count })
    }

    /// Size of one row of this node in memory in bytes, without children and text.
    pub(crate) fn row_bytes(&self) -> usize {
        match &self.kind {
            Kind::Fixed { width, .. } => *width,
            Kind::Var { .. } | Kind::List(_) => 4,
            Kind::Bool | Kind::Struct(_) => 1,
        }
    }

    /// Size of one null row in memory in bytes, with the children of structs.
    pub(crate) fn null_row_bytes(&self) -> usize {
        let children = if let Kind::Struct(children) = &self.kind { &children[..] } else { &[] };
        self.row_bytes() + children.iter().map(Self::null_row_bytes).sum::<usize>()
    }
}

#[derive(Debug)]
struct Inner {
    schema: SchemaRef,
    columns: Vec<Node>,
    /// Number of nodes before each column; the last entry is the total.
    node_starts: Vec<usize>,
}

/// How the columns of a schema are stored in a chunk. Compiled once per dataset; cheap to clone.
#[derive(Clone, Debug)]
pub struct Layout(Arc<Inner>);

impl Layout {
    /// Compiles a schema normalized by `normalize_schema`. Refuses other types with the name of the column.
    pub fn new(schema: SchemaRef) -> Result<Self, SchemaError> {
        // Only the check is needed: `Node::new` refuses the types that normalization would replace.
        normalize_schema(&schema)?;
        let columns = schema.fields().iter().map(|f| Node::new(f, f.name())).collect::<Result<Vec<_>, _>>()?;
        let mut node_starts = vec![0];
        for column in &columns {
            node_starts.push(node_starts[node_starts.len() - 1] + column.node_count);
        }
        Ok(Self(Arc::new(Inner { schema, columns, node_starts })))
    }

    /// The schema this layout was compiled from.
    pub fn schema(&self) -> &SchemaRef {
        &self.0.schema
    }

    pub(crate) fn columns(&self) -> &[Node] {
        &self.0.columns
    }

    pub(crate) fn nodes_before(&self, column: usize) -> usize {
        self.0.node_starts[column]
    }
}
