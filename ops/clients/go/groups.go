package delayserver

// What an operator does with consumer groups of this node: show, seek, remove, policy, dead letters.

import (
	"context"
	"time"
)

// Place is where a group begins or goes on. The zero value is "not given".
type Place struct {
	to       string
	timeMs   *int64
	position *int64
}

var (
	// Earliest is the first message that the node keeps.
	Earliest = Place{to: "earliest"}
	// Latest is behind the last message.
	Latest = Place{to: "latest"}
)

// AtTime is the first message that was dispatched at or after a time.
func AtTime(moment time.Time) Place { return Place{timeMs: Some(ceilUnixMs(moment))} }

// AtPosition is a position, as Read and GroupState give them. A group cannot begin there, but Seek goes there.
func AtPosition(position int64) Place { return Place{position: &position} }

// start is the argument of a pull, or nil.
func (p Place) start() any {
	switch {
	case p.to != "":
		return p.to
	case p.timeMs != nil:
		return *p.timeMs
	case p.position != nil:
		return []int64{*p.position} // no form that the server takes: it says so
	}
	return nil
}

func (p Place) seek(arguments map[string]any) map[string]any {
	given(arguments, "to", p.to)
	if p.timeMs != nil {
		arguments["time_ms"] = *p.timeMs
	}
	if p.position != nil {
		arguments["position"] = *p.position
	}
	return arguments
}

func groupArguments(subject, group string) map[string]any {
	return map[string]any{"subject": subject, "group": group}
}

// Group shows one consumer group of this node.
func (c *Client) Group(ctx context.Context, subject, group string) (*GroupState, error) {
	return ask[GroupState](ctx, c, changesNothing, "group", groupArguments(subject, group))
}

// Sought is where a group goes on, and between which positions it could.
type Sought struct {
	Position int64 `msgpack:"position"`
	First    int64 `msgpack:"first"`
	End      int64 `msgpack:"end"`
}

// Seek lets a group go on at another place: what lies before counts as consumed, and the rest comes as if for the first time.
func (c *Client) Seek(ctx context.Context, subject, group string, to Place) (*Sought, error) {
	return ask[Sought](ctx, c, sameAsOnce, "seek", to.seek(groupArguments(subject, group)))
}

// RemoveGroup forgets a group: its position, its leases and its redeliveries. Its policy stays.
func (c *Client) RemoveGroup(ctx context.Context, subject, group string) error {
	return c.call(ctx, notTwice, "remove_group", groupArguments(subject, group), &struct{}{})
}

// Policy says how a node serves a consumer group. nil: the default.
type Policy struct {
	Attempts   *int     `msgpack:"attempts"` // a message that is not acked after so many becomes a dead letter; 0: never
	FirstMs    *int64   `msgpack:"first_ms"` // pause before the first redelivery
	Factor     *float64 `msgpack:"factor"`   // each pause is so many times the one before
	CapMs      *int64   `msgpack:"cap_ms"`   // the longest pause
	FirstLevel *int     `msgpack:"first_level"`
	Tags       *string  `msgpack:"tags"`
	Where      *string  `msgpack:"where"`
	FailedKey  *string  `msgpack:"failed_key"` // "skip" or "wait"
}

func (p *Policy) wire() map[string]any {
	fields := map[string]any{}
	set(fields, "attempts", p.Attempts)
	set(fields, "first_ms", p.FirstMs)
	set(fields, "factor", p.Factor)
	set(fields, "cap_ms", p.CapMs)
	set(fields, "first_level", p.FirstLevel)
	set(fields, "tags", p.Tags)
	set(fields, "where", p.Where)
	set(fields, "failed_key", p.FailedKey)
	return fields
}

func set[T any](fields map[string]any, name string, value *T) {
	if value != nil {
		fields[name] = *value
	}
}

// GroupPolicy is the policy of a group, and what applies with the defaults of the node.
type GroupPolicy struct {
	Policy  Policy `msgpack:"policy"`
	Applies struct {
		Attempts int     `msgpack:"attempts"`
		LevelsMs []int64 `msgpack:"levels_ms"` // with levels the next three do not apply
		FirstMs  int64   `msgpack:"first_ms"`
		Factor   float64 `msgpack:"factor"`
		CapMs    int64   `msgpack:"cap_ms"`
	} `msgpack:"applies"`
}

// Policy shows the policy of a group. The group need not have pulled.
func (c *Client) Policy(ctx context.Context, subject, group string) (*GroupPolicy, error) {
	return ask[GroupPolicy](ctx, c, changesNothing, "policy", groupArguments(subject, group))
}

// SetPolicy changes the fields that are not nil, and leaves the others as they are.
func (c *Client) SetPolicy(ctx context.Context, subject, group string, fields Policy) (*GroupPolicy, error) {
	arguments := groupArguments(subject, group)
	arguments["set"] = fields.wire()
	return ask[GroupPolicy](ctx, c, sameAsOnce, "policy", arguments)
}

// ReplacePolicy sets all fields, those that are nil to their defaults.
func (c *Client) ReplacePolicy(ctx context.Context, subject, group string, fields Policy) (*GroupPolicy, error) {
	arguments := groupArguments(subject, group)
	arguments["set"], arguments["reset"] = fields.wire(), true
	return ask[GroupPolicy](ctx, c, sameAsOnce, "policy", arguments)
}

// DeadLetter is a message that a group gave up.
type DeadLetter struct {
	Position   int64             `msgpack:"position"` // for ResendOptions and DropOptions
	ID         string            `msgpack:"message_id"`
	Reason     string            `msgpack:"reason"` // nacked, ack_timeout, or "" of a message that was sent to the dead-letter subject itself
	Text       string            `msgpack:"text"`   // the Reason of its last Nack
	Attempts   int               `msgpack:"attempts"`
	DeadMs     int64             `msgpack:"dead_ms"` // when it was given up
	DueMs      int64             `msgpack:"due_ms"`
	Sequence   int64             `msgpack:"sequence"`
	ServerID   string            `msgpack:"server_id"`
	Properties map[string]string `msgpack:"properties"`
	BodyBytes  int64             `msgpack:"body_bytes"`
	Body       []byte            `msgpack:"body"` // with DeadLetterQuery.Bodies
}

// DeadLetterQuery says which letters to list. Zero values are the server's defaults.
type DeadLetterQuery struct {
	After  *int64 // the Next of the page before
	Max    int    // at most 256
	Bodies bool
}

// DeadLetterPage is one page of letters, the oldest first. Next is nil at the end.
type DeadLetterPage struct {
	Letters    []DeadLetter `msgpack:"letters"`
	Next       *int64       `msgpack:"next"`
	Left       int64        `msgpack:"left"`       // all letters of the group
	Unreadable int64        `msgpack:"unreadable"` // those that damage hides
}

func letterArguments(action, subject, group string) map[string]any {
	arguments := groupArguments(subject, group)
	arguments["action"] = action
	return arguments
}

func (q *DeadLetterQuery) wire(subject, group string) map[string]any {
	arguments := letterArguments("list", subject, group)
	set(arguments, "after", q.After)
	given(arguments, "max", q.Max)
	given(arguments, "bodies", q.Bodies)
	return arguments
}

// DeadLetters lists what a group gave up.
func (c *Client) DeadLetters(ctx context.Context, subject, group string, query DeadLetterQuery) (*DeadLetterPage, error) {
	return ask[DeadLetterPage](ctx, c, changesNothing, "dead_letters", query.wire(subject, group))
}

// ResendOptions say which letters are sent again, and how fast. Zero values are the server's defaults.
type ResendOptions struct {
	Positions []int64       // these letters; nil: the oldest ones
	Max       int           // at most 1,024
	Rate      float64       // so many become due in a second; 0: all at once
	First     time.Duration // when the first one is due
}

// Resent is the answer of ResendDeadLetters. NextMs is the First of the next request at the same rate, in milliseconds.
type Resent struct {
	Resent     int64 `msgpack:"resent"`
	Left       int64 `msgpack:"left"`
	Unreadable int64 `msgpack:"unreadable"`
	NextMs     int64 `msgpack:"next_ms"`
}

func (o *ResendOptions) wire(subject, group string) map[string]any {
	arguments := letterArguments("resend", subject, group)
	given(arguments, "max", o.Max)
	given(arguments, "rate", o.Rate)
	given(arguments, "first_ms", ceilMs(o.First))
	if o.Positions != nil {
		arguments["positions"] = o.Positions
	}
	return arguments
}

// chosen letters are the same ones in a second request; without positions a second request takes the next letters.
func chosen(positions []int64) effect {
	if positions == nil {
		return notTwice
	}
	return sameAsOnce
}

// ResendDeadLetters sends letters to their group again. Their attempts begin at 1.
func (c *Client) ResendDeadLetters(ctx context.Context, subject, group string, options ResendOptions) (*Resent, error) {
	return ask[Resent](ctx, c, chosen(options.Positions), "dead_letters", options.wire(subject, group))
}

// DropOptions say which letters are dropped.
type DropOptions struct {
	Positions []int64 // these letters; nil: the oldest ones
	Max       int
}

// Dropped is the answer of DropDeadLetters.
type Dropped struct {
	Dropped int64 `msgpack:"dropped"`
	Left    int64 `msgpack:"left"`
}

// DropDeadLetters forgets letters for good.
func (c *Client) DropDeadLetters(ctx context.Context, subject, group string, options DropOptions) (*Dropped, error) {
	arguments := letterArguments("drop", subject, group)
	given(arguments, "max", options.Max)
	if options.Positions != nil {
		arguments["positions"] = options.Positions
	}
	return ask[Dropped](ctx, c, chosen(options.Positions), "dead_letters", arguments)
}
