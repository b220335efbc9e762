package delayserver

// What a sender does with messages that were accepted: cancel, look up, reschedule.

import (
	"context"
	"time"
)

// Outcomes of cancel, reschedule and lookup.
const (
	Unknown          = "unknown"
	Pending          = "pending"
	InFlight         = "in_flight"
	Retrying         = "retrying"
	Delivered        = "delivered"
	Cancelled        = "cancelled"
	Expired          = "expired"
	Deduplicated     = "deduplicated"
	DeadLettered     = "dead_lettered"
	Retired          = "retired"
	AlreadyCancelled = "already_cancelled"
	TooLate          = "too_late"
	RolledBack       = "rolled_back"
	Prepared         = "prepared"
	Committed        = "committed"
)

// Name names a message in place of a receipt.
type Name struct {
	Subject string
	ID      string
	Due     time.Time
}

func (n Name) wire() map[string]any {
	return map[string]any{"subject": n.Subject, "message_id": n.ID, "due_ms": ceilUnixMs(n.Due)}
}

// State is the answer for one message. Err is set in place of the rest where the server refused the item.
type State struct {
	Err     *Error
	Receipt Receipt
	Outcome string

	// Only of a lookup, as far as it is known.
	Subject             string
	DueMs               int64
	DispatchedUs        int64
	Attempts            int64
	UnansweredElsewhere int64
	BrokerGroup         string
	Original            Receipt // of a copy: the message that counts
	RescheduledTo       Receipt
}

type stateRow struct {
	wireError           `msgpack:",inline"`
	Receipt             Receipt `msgpack:"receipt"`
	Outcome             string  `msgpack:"outcome"`
	Subject             string  `msgpack:"subject"`
	DueMs               int64   `msgpack:"due_ms"`
	DispatchedUs        int64   `msgpack:"dispatched_us"`
	Attempts            int64   `msgpack:"attempts"`
	UnansweredElsewhere int64   `msgpack:"unanswered_elsewhere"`
	BrokerGroup         string  `msgpack:"broker_group"`
	Original            Receipt `msgpack:"original_receipt"`
	RescheduledTo       Receipt `msgpack:"rescheduled_to"`
}

func (r *stateRow) state() State {
	return State{
		Err: r.named(), Receipt: r.Receipt, Outcome: r.Outcome, Subject: r.Subject, DueMs: r.DueMs, DispatchedUs: r.DispatchedUs,
		Attempts: r.Attempts, UnansweredElsewhere: r.UnansweredElsewhere, BrokerGroup: r.BrokerGroup, Original: r.Original,
		RescheduledTo: r.RescheduledTo,
	}
}

func (c *Client) states(ctx context.Context, kind effect, operation, form string, items any, count int) ([]State, error) {
	var result struct {
		Results []stateRow `msgpack:"results"`
	}
	if err := c.call(ctx, kind, operation, map[string]any{form: items}, &result); err != nil {
		return nil, err
	}
	if len(result.Results) != count {
		return nil, wrongCount(operation, len(result.Results), count)
	}
	states := make([]State, count)
	for row := range states {
		states[row] = result.Results[row].state()
	}
	return states, nil
}

func names(of []Name) []any {
	rows := make([]any, len(of))
	for row, name := range of {
		rows[row] = name.wire()
	}
	return rows
}

// Cancel stops messages. Cancelled is on disk, and means that the message is never delivered. Where the client
// repeated the request, AlreadyCancelled can be the work of its first attempt.
func (c *Client) Cancel(ctx context.Context, receipts ...Receipt) ([]State, error) {
	return c.states(ctx, sameAsOnce, "cancel", "receipts", receipts, len(receipts))
}

// CancelNamed stops messages by their names. A name that fits no message has a receipt with the sequence 0.
func (c *Client) CancelNamed(ctx context.Context, of ...Name) ([]State, error) {
	return c.states(ctx, sameAsOnce, "cancel", "messages", names(of), len(of))
}

// Lookup tells what became of messages. It does not know about acks.
func (c *Client) Lookup(ctx context.Context, receipts ...Receipt) ([]State, error) {
	return c.states(ctx, changesNothing, "lookup", "receipts", receipts, len(receipts))
}

// LookupNamed tells what became of messages, by their names.
func (c *Client) LookupNamed(ctx context.Context, of ...Name) ([]State, error) {
	return c.states(ctx, changesNothing, "lookup", "messages", names(of), len(of))
}

// Move is another due time for a message. What is nil stays as it was.
type Move struct {
	Receipt    Receipt // or:
	Name       Name
	Due        time.Time // by the server's clock; or:
	Delay      time.Duration
	Body       []byte
	Properties map[string]string
	Expires    *time.Time // the zero time: never
}

// Moved is the answer for one item of Reschedule. The new fields are there exactly if Outcome is Cancelled.
type Moved struct {
	Err        *Error
	Receipt    Receipt // of the old message
	Outcome    string  // of the old message
	NewReceipt Receipt
	MessageID  string
	DueMs      int64
	Sequence   int64
}

func (m *Move) wire(dueMs int64) map[string]any {
	row := map[string]any{"due_ms": dueMs}
	if m.Receipt != "" {
		row["receipt"] = m.Receipt
	} else {
		row["subject"], row["message_id"], row["message_due_ms"] = m.Name.Subject, m.Name.ID, ceilUnixMs(m.Name.Due)
	}
	if m.Body != nil {
		row["body"] = m.Body
	}
	if m.Properties != nil {
		row["properties"] = m.Properties
	}
	if m.Expires != nil {
		row["expires_ms"] = int64(0)
		if !m.Expires.IsZero() {
			row["expires_ms"] = m.Expires.UnixMilli()
		}
	}
	return row
}

// Reschedule moves messages to another due time: a cancel and a send in one atomic step for each.
// The client repeats it only where nothing was done. After a NoReplyError with MaybeDone look the old message up, RescheduledTo is the new one.
func (c *Client) Reschedule(ctx context.Context, moves ...Move) ([]Moved, error) {
	delays := make([]time.Duration, len(moves))
	for row := range moves {
		if !moves[row].Due.IsZero() && moves[row].Delay != 0 {
			return nil, errDueAndDelay
		}
		delays[row] = moves[row].Delay
	}
	due, err := c.resolve(ctx, delays...)
	if err != nil {
		return nil, err
	}
	items := make([]any, len(moves))
	for row := range moves {
		if !moves[row].Due.IsZero() {
			due[row] = ceilUnixMs(moves[row].Due)
		}
		items[row] = moves[row].wire(due[row])
	}
	var result struct {
		Results []struct {
			wireError  `msgpack:",inline"`
			Receipt    Receipt `msgpack:"receipt"`
			Outcome    string  `msgpack:"outcome"`
			NewReceipt Receipt `msgpack:"new_receipt"`
			MessageID  string  `msgpack:"message_id"`
			DueMs      int64   `msgpack:"due_ms"`
			Sequence   int64   `msgpack:"sequence"`
		} `msgpack:"results"`
	}
	if err := c.call(ctx, notTwice, "reschedule", map[string]any{"items": items}, &result); err != nil {
		return nil, err
	}
	if len(result.Results) != len(moves) {
		return nil, wrongCount("reschedule", len(result.Results), len(moves))
	}
	moved := make([]Moved, len(moves))
	for row := range moved {
		from := &result.Results[row]
		moved[row] = Moved{from.named(), from.Receipt, from.Outcome, from.NewReceipt, from.MessageID, from.DueMs, from.Sequence}
	}
	return moved, nil
}
