//! Where a seq stands that is not where it was looked for.

use rusqlite::types::Value;

use super::{PLACES, Place, Reader, signed};
use crate::journal::cannot_use::CannotUse;
use crate::rules::ids::{Seq, WorkflowId};

/// The most places and workflows that are named.
const NAMED_MAX: usize = 3;

/// A seq that was looked for in vain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// The workflow that was looked in.
    pub workflow: WorkflowId,
    /// What there is of it.
    pub looked: Looked,
    /// Some of the places at which the seq does stand, those of the same workflow first.
    pub others: Vec<Place>,
    /// There are more of them.
    pub has_more: bool,
    /// Some of the journal's workflows, where there is none of that name.
    pub workflows: Vec<WorkflowId>,
}

/// How much there is of the place that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// No such workflow.
    NoWorkflow,
    /// The workflow, but no branch of that number.
    NoBranch(u32),
    /// The branch of that number.
    Branch(u32),
}

impl Reader {
    /// Tells of a seq that [`Reader::find`] has not found, given the same.
    ///
    /// # Errors
    ///
    /// The journal can't be read.
    pub fn elsewhere(
        &mut self,
        workflow: Option<&WorkflowId>,
        branch: Option<u32>,
        seq: Seq,
    ) -> Result<Elsewhere, CannotUse> {
        self.in_snapshot(|reader| {
            let workflow = match workflow {
                Some(workflow) => workflow.clone(),
                None => reader.usual_workflow()?,
            };
            let looked = reader.looked(&workflow, branch)?;
            let workflows = match looked {
                Looked::NoWorkflow => {
                    let mut all = reader.workflow_ids()?;
                    all.truncate(NAMED_MAX);
                    all
                }
                Looked::NoBranch(_) | Looked::Branch(_) => Vec::new(),
            };
            let sql = format!(
                "{PLACES} WHERE EXISTS (SELECT 1 FROM entries e WHERE e.branch_id = b.id \
                 AND e.seq = ?) ORDER BY w.workflow_id <> ?, w.workflow_id, b.branch LIMIT {}",
                NAMED_MAX + 1
            );
            let values = vec![
                Value::Integer(signed(seq.0)),
                Value::Text(workflow.0.clone()),
            ];
            let places = reader.places(&sql, values)?;
            Ok(Elsewhere {
                has_more: places.len() > NAMED_MAX,
                others: places
                    .into_iter()
                    .take(NAMED_MAX)
                    .map(|(_, place)| place)
                    .collect(),
                workflow,
                looked,
                workflows,
            })
        })
    }

    /// Tells how much there is of a branch of a workflow, the active one unless told otherwise.
    fn looked(&self, workflow: &WorkflowId, branch: Option<u32>) -> Result<Looked, CannotUse> {
        let sql = format!("{PLACES} WHERE w.workflow_id = ? AND b.id = w.active_branch");
        let active = self.places(&sql, vec![Value::Text(workflow.0.clone())])?;
        let Some((_, active)) = active.first() else {
            return Ok(Looked::NoWorkflow);
        };
        let Some(number) = branch else {
            return Ok(Looked::Branch(active.branch));
        };
        let sql = format!("{PLACES} WHERE w.workflow_id = ? AND b.branch = ?");
        let values = vec![
            Value::Text(workflow.0.clone()),
            Value::Integer(number.into()),
        ];
        Ok(match self.places(&sql, values)?.is_empty() {
            true => Looked::NoBranch(number),
            false => Looked::Branch(number),
        })
    }
}
