package delayserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// Message is what a sender hands over. Give one of Due, Delay and DelayLevel; without them it is due now.
type Message struct {
	Subject    string
	Body       []byte
	Due        time.Time // by the server's clock
	Delay      time.Duration
	DelayLevel int    // in place of Delay: the number of a delay level of the server, from 1
	ID         string // Send draws a UUID where it is empty
	Properties map[string]string
	Expires    time.Time // from then on no consumer gets it; the zero time: never
	Tag        string    // the kind of the message, for filters
	OrderKey   string    // messages of one key come one after the other

	// TellDuplicates asks whether the server had the message before, by an ID of yours. The server then waits until it has read what it
	// accepted before: milliseconds, and at most a second.
	TellDuplicates bool
}

var (
	errDueAndDelay = errors.New("give one of Due, Delay and DelayLevel, not two")
	errNoID        = errors.New("TellDuplicates needs an id of yours: nothing else says that two messages are the same")
)

// Resolve gives the message an id and a due time of its own, once. After it every send of m is the same message.
func (c *Client) Resolve(ctx context.Context, m *Message) error {
	if !m.Due.IsZero() && m.Delay != 0 || m.DelayLevel != 0 && !(m.Due.IsZero() && m.Delay == 0) {
		return errDueAndDelay
	}
	if m.DelayLevel != 0 {
		levels := c.Server().DelayLevelsMs
		if m.DelayLevel < 1 || m.DelayLevel > len(levels) {
			return &Error{Name: InvalidArgument, Message: fmt.Sprintf("the server has %d delay levels, and not the level %d", len(levels), m.DelayLevel)}
		}
		m.Delay, m.DelayLevel = milliseconds(levels[m.DelayLevel-1]), 0
	}
	if m.Due.IsZero() {
		due, err := c.resolve(ctx, m.Delay)
		if err != nil {
			return err
		}
		m.Due, m.Delay = time.UnixMilli(due[0]), 0
	}
	if m.ID == "" {
		m.ID = newID()
	}
	return nil
}

// newID is a random UUID.
func newID() string {
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		panic("the system gives no random bytes: " + err.Error())
	}
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// Sent is a message that the server accepted.
type Sent struct {
	Receipt Receipt
	ID      string
	Due     time.Time

	// Duplicate says whether the server had a message with this id, subject and due time before. Then it delivers that one, with its
	// body: Original is its receipt, and Outcome what became of it. nil: not known, as always without TellDuplicates.
	Duplicate *bool
	Original  Receipt
	Outcome   string
}

type sentRow struct {
	wireError `msgpack:",inline"`
	Receipt   Receipt `msgpack:"receipt"`
	ID        string  `msgpack:"message_id"`
	DueMs     int64   `msgpack:"due_ms"`
	Duplicate *bool   `msgpack:"duplicate"`
	Original  Receipt `msgpack:"original_receipt"`
	Outcome   string  `msgpack:"outcome"`
}

// sent is the answer of a row. With doubt the original can be the message of an earlier attempt of the same call.
func (r *sentRow) sent(doubt bool) *Sent {
	sent := &Sent{r.Receipt, r.ID, time.UnixMilli(r.DueMs), r.Duplicate, r.Original, r.Outcome}
	if doubt && r.Duplicate != nil && *r.Duplicate {
		sent.Duplicate, sent.Original, sent.Outcome = nil, "", ""
	}
	return sent
}

// Send returns when the message is safe on the server's disk. It resolves m first: after a NoReplyError, or an Error with
// Again, send m once more. Then the server delivers it once, while it keeps the window.
func (c *Client) Send(ctx context.Context, m *Message) (*Sent, error) {
	if m.TellDuplicates && m.ID == "" {
		return nil, errNoID
	}
	if err := c.Resolve(ctx, m); err != nil {
		return nil, err
	}
	arguments := map[string]any{"messages": []any{m.wire()}}
	if m.TellDuplicates {
		arguments["tell_duplicates"] = true
	}
	return c.sendOne(ctx, "send", arguments)
}

func (c *Client) sendOne(ctx context.Context, operation string, arguments map[string]any) (*Sent, error) {
	var row sentRow
	doubt, err := c.attempts(ctx, operation, sameAsOnce, func(on *connection) error {
		row = sentRow{}
		return on.callForRow(ctx, operation, arguments, &row, &row.wireError)
	})
	if err != nil {
		return nil, err
	}
	return row.sent(doubt), nil
}

// callForRow makes a request of one item. The error of the item is the error of the attempt.
func (c *connection) callForRow(ctx context.Context, operation string, arguments map[string]any, row any, failed *wireError) error {
	var result struct {
		Results []msgpack.RawMessage `msgpack:"results"`
	}
	if err := c.call(ctx, operation, arguments, &result); err != nil {
		return err
	}
	if len(result.Results) != 1 {
		return wrongCount(operation, len(result.Results), 1)
	}
	if err := decodeResult(operation, &reply{result: result.Results[0]}, row); err != nil {
		return err
	}
	if err := failed.named(); err != nil {
		return err
	}
	return nil
}

func wrongCount(operation string, got, want int) error {
	return fmt.Errorf("the reply to %s has %d results for %d items", operation, got, want)
}

func (m *Message) wire() map[string]any {
	row := m.withoutTime()
	row["due_ms"] = ceilUnixMs(m.Due)
	return row
}

func (m *Message) withoutTime() map[string]any {
	row := map[string]any{"subject": m.Subject, "body": bytesOf(m.Body)}
	for field, text := range map[string]string{"message_id": m.ID, "tag": m.Tag, "order_key": m.OrderKey} {
		if text != "" {
			row[field] = text
		}
	}
	if len(m.Properties) > 0 {
		row["properties"] = m.Properties
	}
	if !m.Expires.IsZero() {
		row["expires_ms"] = m.Expires.UnixMilli()
	}
	return row
}

// bytesOf is never nil, because nil means missing on the wire.
func bytesOf(body []byte) []byte {
	if body == nil {
		return []byte{}
	}
	return body
}

// Batch is many messages as columns. Each slice has one entry for each row, or where it is optional none.
type Batch struct {
	Subject    string          // of all rows, or:
	Subjects   []string        // of each row
	Bodies     [][]byte        // their number is the number of rows
	Due        []time.Time     // by the server's clock; or:
	Delays     []time.Duration // neither: all are due now
	IDs        []string        // SendColumns draws UUIDs where it is nil
	Properties []map[string]string
	Expires    []time.Time // the zero time: never
	Tag        string      // of all rows, or:
	Tags       []string    // of each row; "": none
	OrderKeys  []string    // "": none

	TellDuplicates bool // as in Message; it needs IDs
}

// Rejected is a row that the server refused.
type Rejected struct {
	Index int
	Err   *Error
}

// SentBatch is what became of a batch.
type SentBatch struct {
	Receipts []Receipt // one for each row; "" for one that is rejected
	Rejected []Rejected

	// Duplicates are the accepted rows whose id, subject and due time the server had before. DuplicatesKnown is false where the
	// server cannot say, where an earlier attempt can have sent them, and always without TellDuplicates.
	Duplicates      []Duplicate
	DuplicatesKnown bool
}

// Duplicate is a row of which the server had the message before. It delivers the original.
type Duplicate struct {
	Index    int
	Original Receipt
	Outcome  string // of the original
}

func (b *Batch) check() error {
	rows := len(b.Bodies)
	for _, length := range []int{
		len(b.Subjects), len(b.Due), len(b.Delays), len(b.IDs), len(b.Properties), len(b.Expires), len(b.Tags), len(b.OrderKeys),
	} {
		if length != 0 && length != rows {
			return fmt.Errorf("a slice of the batch has %d entries for %d bodies", length, rows)
		}
	}
	return nil
}

// ResolveColumns gives each message an id and a due time of its own, once.
func (c *Client) ResolveColumns(ctx context.Context, b *Batch) error {
	rows := len(b.Bodies)
	if err := b.check(); err != nil {
		return err
	}
	if b.Due != nil && b.Delays != nil {
		return errDueAndDelay
	}
	if b.Due == nil {
		delays := b.Delays
		if delays == nil {
			delays = make([]time.Duration, rows)
		}
		due, err := c.resolve(ctx, delays...)
		if err != nil {
			return err
		}
		b.Due, b.Delays = make([]time.Time, rows), nil
		for row := range due {
			b.Due[row] = time.UnixMilli(due[row])
		}
	}
	if b.IDs == nil {
		b.IDs = make([]string, rows)
		for row := range b.IDs {
			b.IDs[row] = newID()
		}
	}
	return nil
}

// columnsReply is the reply to send and publish in columns.
type columnsReply struct {
	Accepted      int64          `msgpack:"accepted"`
	FirstSequence int64          `msgpack:"first_sequence"`
	DueMs         column         `msgpack:"due_ms"`
	Position      column         `msgpack:"position"`
	Rejected      []*rejectedRow `msgpack:"rejected"`
	Duplicates    []duplicateRow `msgpack:"duplicates"`
}

// duplicateRow is `[sequence, original sequence, outcome]`.
type duplicateRow struct {
	_msgpack         struct{} `msgpack:",as_array"`
	Sequence         int64
	OriginalSequence int64
	Outcome          string
}

// accepted gives the indexes of the accepted rows of rows, in order, and the refused ones.
func (r *columnsReply) accepted(operation string, rows int) (accepted []int, rejected []Rejected, err error) {
	refused := make(map[int64]bool, len(r.Rejected))
	for _, row := range r.Rejected {
		if row == nil || row.Index < 0 || row.Index >= int64(rows) {
			return nil, nil, fmt.Errorf("the reply to %s rejects a row that was not sent", operation)
		}
		refused[row.Index] = true
		rejected = append(rejected, Rejected{int(row.Index), row.named()})
	}
	if r.Accepted != int64(rows-len(refused)) {
		return nil, nil, wrongCount(operation, int(r.Accepted)+len(refused), rows)
	}
	for row := 0; row < rows; row++ {
		if !refused[int64(row)] {
			accepted = append(accepted, row)
		}
	}
	return accepted, rejected, nil
}

// SendColumns sends a batch in one request, of at most Limits.BatchMessagesMax rows. It resolves b first, as Send does.
// Rejected rows are not repeated: send those whose error has Again once more.
func (c *Client) SendColumns(ctx context.Context, b *Batch) (*SentBatch, error) {
	if b.TellDuplicates && b.IDs == nil {
		return nil, errNoID
	}
	if err := c.ResolveColumns(ctx, b); err != nil {
		return nil, err
	}
	arguments, err := b.wire()
	if err != nil {
		return nil, err
	}
	if b.TellDuplicates {
		arguments["tell_duplicates"] = true
	}
	return c.sendColumns(ctx, "send", arguments, len(b.Bodies))
}

func (c *Client) sendColumns(ctx context.Context, operation string, arguments map[string]any, rows int) (*SentBatch, error) {
	var result columnsReply
	var serverID string
	doubt, err := c.attempts(ctx, operation, sameAsOnce, func(on *connection) error {
		result, serverID = columnsReply{}, on.server.ID
		return on.call(ctx, operation, arguments, &result)
	})
	if err != nil {
		return nil, err
	}
	return result.sent(operation, serverID, rows, doubt)
}

func (r *columnsReply) sent(operation, serverID string, rows int, doubt bool) (*SentBatch, error) {
	accepted, rejected, err := r.accepted(operation, rows)
	if err != nil {
		return nil, err
	}
	due, err := r.DueMs.rows(len(accepted), i64)
	if err != nil {
		return nil, err
	}
	sent := &SentBatch{Receipts: make([]Receipt, rows), Rejected: rejected, DuplicatesKnown: r.Duplicates != nil && !doubt}
	for place, row := range accepted {
		sent.Receipts[row] = NewReceipt(serverID, due[place], r.FirstSequence+int64(place))
	}
	if !sent.DuplicatesKnown {
		return sent, nil
	}
	for _, copied := range r.Duplicates {
		if copied.Sequence < r.FirstSequence || copied.Sequence >= r.FirstSequence+int64(len(accepted)) {
			return nil, fmt.Errorf("the reply to %s names a duplicate that was not sent", operation)
		}
		place := copied.Sequence - r.FirstSequence
		sent.Duplicates = append(sent.Duplicates, Duplicate{accepted[place], NewReceipt(serverID, due[place], copied.OriginalSequence), copied.Outcome})
	}
	return sent, nil
}

func (b *Batch) wire() (map[string]any, error) {
	arguments, err := b.withoutTimes()
	due := make([]int64, len(b.Due))
	for row, moment := range b.Due {
		due[row] = ceilUnixMs(moment)
	}
	if err == nil {
		arguments["due_ms"] = encodeColumn(due, i64)
	}
	return arguments, err
}

func (b *Batch) withoutTimes() (map[string]any, error) {
	arguments := map[string]any{"count": len(b.Bodies)}
	if b.Subjects == nil {
		arguments["subject"] = b.Subject
	} else {
		arguments["subjects"], arguments["subject_index"] = distinct(b.Subjects)
	}
	arguments["bodies"], arguments["body_length"] = join(b.Bodies)
	if b.IDs != nil {
		arguments["message_ids"], arguments["message_id_length"] = join(b.IDs)
	}
	if b.Tag != "" {
		arguments["tag"] = b.Tag
	}
	if b.Tags != nil {
		arguments["tags"], arguments["tag_index"] = tagColumns(b.Tags)
	}
	if b.OrderKeys != nil {
		arguments["order_keys"], arguments["order_key_length"] = join(b.OrderKeys)
	}
	if b.Properties != nil {
		packed := make([][]byte, len(b.Properties))
		for row, properties := range b.Properties {
			if len(properties) == 0 {
				continue
			}
			var err error
			if packed[row], err = msgpack.Marshal(properties); err != nil {
				return nil, err
			}
		}
		arguments["properties"], arguments["properties_length"] = join(packed)
	}
	if b.Expires != nil {
		expires := make([]int64, len(b.Expires))
		for row, moment := range b.Expires {
			if !moment.IsZero() {
				expires[row] = moment.UnixMilli()
			}
		}
		arguments["expires_ms"] = encodeColumn(expires, i64)
	}
	return arguments, nil
}

// distinct gives each subject once, and the index of each row's.
func distinct(subjects []string) ([]string, any) {
	var names []string
	numbers := map[string]int64{}
	index := make([]int64, len(subjects))
	for row, subject := range subjects {
		index[row] = numberOf(subject, &names, numbers)
	}
	return names, encodeColumn(index, u32)
}

// tagColumns gives each tag once, and 1 + the index of each row's; 0 for none.
func tagColumns(tags []string) ([]string, any) {
	names := []string{}
	numbers := map[string]int64{}
	index := make([]int64, len(tags))
	for row, tag := range tags {
		if tag != "" {
			index[row] = 1 + numberOf(tag, &names, numbers)
		}
	}
	return names, encodeColumn(index, u32)
}

func numberOf(text string, names *[]string, numbers map[string]int64) int64 {
	number, known := numbers[text]
	if !known {
		number = int64(len(*names))
		numbers[text] = number
		*names = append(*names, text)
	}
	return number
}
