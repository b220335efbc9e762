package delayserver

// Transactions: a prepared message that no consumer gets before it is committed, and the server's questions about it.

import (
	"context"
	"strconv"
	"time"
)

// What becomes of a transaction whose check-backs nobody answered.
const (
	PolicyRollback = "rollback"
	PolicyCommit   = "commit"
)

// Transaction says how the server asks about a prepared message. Zero values are the server's defaults.
type Transaction struct {
	Group      string        // of the producer; check-backs are messages of the subject CheckSubject(Group)
	CheckAfter time.Duration // pause before the first check-back and between two
	ChecksMax  *int          // check-backs without an answer before the policy decides; Some(0): none
	Policy     string        // PolicyRollback or PolicyCommit
}

// Some is a pointer to a value, for fields where nil is "not given".
func Some[T any](value T) *T { return &value }

// CheckSubject is the subject of the check-backs of a producer's group.
func CheckSubject(group string) string { return group + ".check" }

func (t *Transaction) terms(arguments map[string]any) map[string]any {
	arguments["group"] = t.Group
	given(arguments, "check_after_ms", ceilMs(t.CheckAfter))
	given(arguments, "policy", t.Policy)
	if t.ChecksMax != nil {
		arguments["checks_max"] = *t.ChecksMax
	}
	return arguments
}

// Prepare stores a message that no consumer gets until Commit. The receipt names the transaction. It resolves m first, as Send does.
func (c *Client) Prepare(ctx context.Context, terms Transaction, m *Message) (*Sent, error) {
	if err := c.Resolve(ctx, m); err != nil {
		return nil, err
	}
	return c.sendOne(ctx, "prepare", terms.terms(map[string]any{"messages": []any{m.wire()}}))
}

// PrepareColumns prepares a batch, each row a transaction of its own.
func (c *Client) PrepareColumns(ctx context.Context, terms Transaction, b *Batch) (*SentBatch, error) {
	if err := c.ResolveColumns(ctx, b); err != nil {
		return nil, err
	}
	arguments, err := b.wire()
	if err != nil {
		return nil, err
	}
	return c.sendColumns(ctx, "prepare", terms.terms(arguments), len(b.Bodies))
}

// Ended is the answer for one transaction. Err has the name TransactionUnknown, or TransactionEnded with its Outcome.
type Ended struct {
	Err     *Error
	Receipt Receipt // of the transaction
	Outcome string  // Committed or RolledBack

	// Of a commit: the visible message.
	NewReceipt Receipt
	DueMs      int64
	Sequence   int64
}

type endedRow struct {
	wireError  `msgpack:",inline"`
	Receipt    Receipt `msgpack:"receipt"`
	Outcome    string  `msgpack:"outcome"`
	NewReceipt Receipt `msgpack:"new_receipt"`
	DueMs      int64   `msgpack:"due_ms"`
	Sequence   int64   `msgpack:"sequence"`
}

func (r *endedRow) ended() Ended {
	if err := r.named(); err != nil {
		err.Outcome = r.Outcome
		return Ended{Err: err, Receipt: r.Receipt}
	}
	return Ended{nil, r.Receipt, r.Outcome, r.NewReceipt, r.DueMs, r.Sequence}
}

// Commit makes messages visible. They keep their due times; one that is past is due now. It can be repeated freely.
func (c *Client) Commit(ctx context.Context, receipts ...Receipt) ([]Ended, error) {
	return c.endTransactions(ctx, "commit", map[string]any{"receipts": receipts}, len(receipts))
}

// CommitAt makes messages visible, with another due time.
func (c *Client) CommitAt(ctx context.Context, due time.Time, receipts ...Receipt) ([]Ended, error) {
	items := make([]any, len(receipts))
	for row, receipt := range receipts {
		items[row] = map[string]any{"receipt": receipt, "due_ms": ceilUnixMs(due)}
	}
	return c.endTransactions(ctx, "commit", map[string]any{"items": items}, len(receipts))
}

// Rollback ends transactions, and no consumer ever gets their messages. It can be repeated freely.
func (c *Client) Rollback(ctx context.Context, receipts ...Receipt) ([]Ended, error) {
	return c.endTransactions(ctx, "rollback", map[string]any{"receipts": receipts}, len(receipts))
}

func (c *Client) endTransactions(ctx context.Context, operation string, arguments map[string]any, count int) ([]Ended, error) {
	var result struct {
		Results []endedRow `msgpack:"results"`
	}
	if err := c.call(ctx, sameAsOnce, operation, arguments, &result); err != nil {
		return nil, err
	}
	if len(result.Results) != count {
		return nil, wrongCount(operation, len(result.Results), count)
	}
	ended := make([]Ended, count)
	for row := range ended {
		ended[row] = result.Results[row].ended()
	}
	return ended, nil
}

// OpenTransaction is a transaction that is neither committed nor rolled back.
type OpenTransaction struct {
	Receipt    Receipt `msgpack:"receipt"`
	Subject    string  `msgpack:"subject"`
	DueMs      int64   `msgpack:"due_ms"`
	Group      string  `msgpack:"group"`         // of the producer
	AcceptedUs int64   `msgpack:"accepted_us"`   // when it was prepared; 0 where damage hides it
	NextMs     int64   `msgpack:"next_check_ms"` // of the next check-back, or after the last one of the end by the policy
	Checks     int     `msgpack:"checks"`        // check-backs so far
	ChecksMax  int     `msgpack:"checks_max"`
	Policy     string  `msgpack:"policy"` // PolicyRollback or PolicyCommit
}

type openPage struct {
	Transactions []OpenTransaction `msgpack:"transactions"`
	Next         *string           `msgpack:"next"`
}

func openArguments(after string, most int) map[string]any {
	arguments := map[string]any{}
	given(arguments, "after", after)
	given(arguments, "max", most)
	return arguments
}

// OpenTransactions is a page of the transactions that are not ended, behind the next of another page, "" for the first. A page may be empty
// and not the last one: that has the next "".
func (c *Client) OpenTransactions(ctx context.Context, after string, most int) (page []OpenTransaction, next string, err error) {
	var result openPage
	if err := c.call(ctx, sameAsOnce, "transactions", openArguments(after, most), &result); err != nil {
		return nil, "", err
	}
	if result.Next != nil {
		next = *result.Next
	}
	return result.Transactions, next, nil
}

// CheckBack is a question of the server: shall the transaction be committed or rolled back?
type CheckBack struct {
	Transaction Receipt // for Commit and Rollback
	Subject     string  // of the prepared message
	Due         time.Time
	Check       int // from 1
	ChecksMax   int // the number of the last one
}

// CheckBackOf reads the question out of a message of the subject CheckSubject(group). ok is false for any other message.
func CheckBackOf(message *Received) (check CheckBack, ok bool) {
	about := message.Properties
	dueMs, badDue := strconv.ParseInt(about["transaction_due_ms"], 10, 64)
	number, badNumber := strconv.Atoi(about["transaction_check"])
	most, badMost := strconv.Atoi(about["transaction_checks_max"])
	if badDue != nil || badNumber != nil || badMost != nil || about["transaction"] == "" {
		return CheckBack{}, false
	}
	return CheckBack{Receipt(about["transaction"]), about["transaction_subject"], time.UnixMilli(dueMs), number, most}, true
}
