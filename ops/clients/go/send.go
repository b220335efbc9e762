package delayserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// Message is what a sender hands over. Give Due or Delay, not both; with neither it is due now.
type Message struct {
	Subject    string
	Body       []byte
	Due        time.Time // by the server's clock
	Delay      time.Duration
	ID         string // Send draws a UUID where it is empty
	Properties map[string]string
	Expires    time.Time // from then on nobody gets it; the zero time: never
}

var errDueAndDelay = errors.New("give Due or Delay, not both")

// Prepare gives the message an id and a due time of its own, once. After it every send of m is the same message.
func (c *Client) Prepare(ctx context.Context, m *Message) error {
	if !m.Due.IsZero() && m.Delay != 0 {
		return errDueAndDelay
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

// Send returns when the message is safe on the server's disk. It prepares m first: after a NoReplyError, or an Error with
// Again, send m once more, over a new connection too. Then the server delivers it once, while it keeps the window.
func (c *Client) Send(ctx context.Context, m *Message) (Receipt, error) {
	if err := c.Prepare(ctx, m); err != nil {
		return "", err
	}
	var result struct {
		Results []struct {
			wireError `msgpack:",inline"`
			Receipt   Receipt `msgpack:"receipt"`
		} `msgpack:"results"`
	}
	if err := c.call(ctx, "send", map[string]any{"messages": []any{m.wire()}}, &result); err != nil {
		return "", err
	}
	if len(result.Results) != 1 {
		return "", wrongCount("send", len(result.Results), 1)
	}
	row := result.Results[0]
	if err := row.named(); err != nil {
		return "", err
	}
	return row.Receipt, nil
}

func wrongCount(operation string, got, want int) error {
	return fmt.Errorf("the reply to %s has %d results for %d items", operation, got, want)
}

func (m *Message) wire() map[string]any {
	row := map[string]any{"subject": m.Subject, "body": bytesOf(m.Body), "due_ms": ceilUnixMs(m.Due), "message_id": m.ID}
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
}

// Rejected is a row that the server refused.
type Rejected struct {
	Index int
	Err   *Error
}

// Sent is what became of a batch.
type Sent struct {
	Receipts []Receipt // one for each row; "" for one that is rejected
	Rejected []Rejected
}

// PrepareColumns gives each message an id and a due time of its own, once.
func (c *Client) PrepareColumns(ctx context.Context, b *Batch) error {
	rows := len(b.Bodies)
	for _, length := range []int{len(b.Subjects), len(b.Due), len(b.Delays), len(b.IDs), len(b.Properties), len(b.Expires)} {
		if length != 0 && length != rows {
			return fmt.Errorf("a slice of the batch has %d entries for %d bodies", length, rows)
		}
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

// SendColumns sends a batch in one request, of at most Limits.BatchMessagesMax rows. It prepares b first, as Send does.
func (c *Client) SendColumns(ctx context.Context, b *Batch) (*Sent, error) {
	if err := c.PrepareColumns(ctx, b); err != nil {
		return nil, err
	}
	arguments, err := b.wire()
	if err != nil {
		return nil, err
	}
	var result struct {
		Accepted      int64          `msgpack:"accepted"`
		FirstSequence int64          `msgpack:"first_sequence"`
		DueMs         column         `msgpack:"due_ms"`
		Rejected      []*rejectedRow `msgpack:"rejected"`
	}
	if err := c.call(ctx, "send", arguments, &result); err != nil {
		return nil, err
	}
	rows := len(b.Bodies)
	sent := &Sent{Receipts: make([]Receipt, rows)}
	refused := make(map[int64]bool, len(result.Rejected))
	for _, row := range result.Rejected {
		if row == nil || row.Index < 0 || row.Index >= int64(rows) {
			return nil, errors.New("the reply to send rejects a row that was not sent")
		}
		refused[row.Index] = true
		sent.Rejected = append(sent.Rejected, Rejected{int(row.Index), row.named()})
	}
	if result.Accepted != int64(rows-len(refused)) {
		return nil, wrongCount("send", int(result.Accepted)+len(refused), rows)
	}
	due, err := result.DueMs.rows(int(result.Accepted), i64)
	if err != nil {
		return nil, err
	}
	accepted := 0
	for row := range sent.Receipts {
		if !refused[int64(row)] {
			sent.Receipts[row] = NewReceipt(c.server.ID, due[accepted], result.FirstSequence+int64(accepted))
			accepted++
		}
	}
	return sent, nil
}

func (b *Batch) wire() (map[string]any, error) {
	arguments := map[string]any{"count": len(b.Bodies)}
	if b.Subjects == nil {
		arguments["subject"] = b.Subject
	} else {
		arguments["subjects"], arguments["subject_index"] = distinct(b.Subjects)
	}
	due := make([]int64, len(b.Due))
	for row, moment := range b.Due {
		due[row] = ceilUnixMs(moment)
	}
	arguments["due_ms"] = encodeColumn(due, i64)
	arguments["bodies"], arguments["body_length"] = join(b.Bodies)
	arguments["message_ids"], arguments["message_id_length"] = join(b.IDs)
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
		number, known := numbers[subject]
		if !known {
			number = int64(len(names))
			numbers[subject] = number
			names = append(names, subject)
		}
		index[row] = number
	}
	return names, encodeColumn(index, u32)
}
