package delayserver

// What a consumer does: pull, ack, nack.

import (
	"context"
	"errors"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// Pull says what to take. Zero values are the server's defaults.
type Pull struct {
	Subject    string
	Group      string
	Max        int           // messages; 0 is 1
	MaxBytes   int           // 0 is 8 MiB
	Wait       time.Duration // for the first message; at most Limits.WaitMsMax
	AckTimeout time.Duration // length of the lease
	Ack        []int64       // deliveries of this subject and group to acknowledge first
	Tags       string        // "paid || shipped": the filter of the group from now on; "" and "" keep the one that it has
	Where      string        // "price > 3"
}

// Received is a delivery of a message. It can come again: be idempotent by ID.
type Received struct {
	ID           string
	Subject      string
	ServerID     string
	Sequence     int64
	DueMs        int64
	AcceptedUs   int64
	DispatchedUs int64
	ExpiresMs    int64 // 0: never, or not known
	Attempt      int   // above 1: it can have come before
	Body         []byte
	Properties   map[string]string
	Delivery     int64 // for Ack and Nack, with subject and group
}

type pulled struct {
	Count            int64    `msgpack:"count"`
	Subject          string   `msgpack:"subject"`
	ServerIDs        []string `msgpack:"server_ids"`
	ServerIndex      column   `msgpack:"server_index"`
	Sequence         column   `msgpack:"sequence"`
	DueMs            column   `msgpack:"due_ms"`
	AcceptedUs       column   `msgpack:"accepted_us"`
	DispatchedUs     column   `msgpack:"dispatched_us"`
	ExpiresMs        column   `msgpack:"expires_ms"`
	Delivery         column   `msgpack:"delivery"`
	Attempt          column   `msgpack:"attempt"`
	MessageIDs       []byte   `msgpack:"message_ids"`
	MessageIDLength  column   `msgpack:"message_id_length"`
	Properties       []byte   `msgpack:"properties"`
	PropertiesLength column   `msgpack:"properties_length"`
	Bodies           []byte   `msgpack:"bodies"`
	BodyLength       column   `msgpack:"body_length"`
}

var errPulled = errors.New("the columns of the reply to pull do not fit together")

// messages makes rows of the columns, at most most of them.
func (p *pulled) messages(most int) ([]Received, error) {
	if p.Count < 0 || p.Count > int64(most) {
		return nil, errPulled
	}
	count := int(p.Count)
	if p.ExpiresMs.form == missing {
		p.ExpiresMs.form = same // an older server
	}
	var numbers [8][]int64
	for index, from := range []struct {
		column *column
		kind   columnType
	}{
		{&p.ServerIndex, u32}, {&p.Sequence, i64}, {&p.DueMs, i64}, {&p.AcceptedUs, i64}, {&p.DispatchedUs, i64},
		{&p.ExpiresMs, i64}, {&p.Delivery, i64}, {&p.Attempt, u32},
	} {
		var err error
		if numbers[index], err = from.column.rows(count, from.kind); err != nil {
			return nil, err
		}
	}
	ids, err := cut(p.MessageIDs, &p.MessageIDLength, count)
	if err != nil {
		return nil, err
	}
	properties, err := cut(p.Properties, &p.PropertiesLength, count)
	if err != nil {
		return nil, err
	}
	bodies, err := cut(p.Bodies, &p.BodyLength, count)
	if err != nil {
		return nil, err
	}
	rows := make([]Received, count)
	for row := range rows {
		server := numbers[0][row]
		if server >= int64(len(p.ServerIDs)) {
			return nil, errPulled
		}
		rows[row] = Received{
			ID: string(ids[row]), Subject: p.Subject, ServerID: p.ServerIDs[server], Sequence: numbers[1][row], DueMs: numbers[2][row],
			AcceptedUs: numbers[3][row], DispatchedUs: numbers[4][row], ExpiresMs: numbers[5][row], Delivery: numbers[6][row],
			Attempt: int(numbers[7][row]), Body: bodies[row],
		}
		if len(ids[row]) == 0 {
			rows[row].ID = DerivedID(rows[row].ServerID, rows[row].Sequence)
		}
		if len(properties[row]) > 0 {
			if checkValue(properties[row]) != nil || msgpack.Unmarshal(properties[row], &rows[row].Properties) != nil {
				return nil, errPulled
			}
		}
	}
	return rows, nil
}

func (p *Pull) wire() map[string]any {
	arguments := map[string]any{"subject": p.Subject, "group": p.Group, "columns": true, "max_messages": p.most(), "wait_ms": ceilMs(p.Wait)}
	if p.Tags != "" {
		arguments["tags"] = p.Tags
	}
	if p.Where != "" {
		arguments["where"] = p.Where
	}
	if p.MaxBytes != 0 {
		arguments["max_bytes"] = p.MaxBytes
	}
	if p.AckTimeout != 0 {
		arguments["ack_timeout_ms"] = ceilMs(p.AckTimeout)
	}
	if len(p.Ack) > 0 {
		arguments["ack"] = map[string]any{"count": len(p.Ack), "deliveries": encodeColumn(p.Ack, i64)}
	}
	return arguments
}

func (p *Pull) most() int {
	if p.Max == 0 {
		return 1
	}
	return p.Max
}

// Pull takes messages, and waits for the first one for up to request.Wait. None, without an error, means that the wait is over.
// When ctx ends, Pull returns at once and ends the wait at the server. Messages that come all the same go back to the group.
func (c *Client) Pull(ctx context.Context, request Pull) ([]Received, error) {
	id, open, err := c.begin(ctx, "pull", request.wire(), c.pulls)
	if err != nil {
		return nil, err
	}
	answer, err := c.wait(ctx, id, open, func(late *reply) {
		defer open.leave()
		c.giveBack(&request, late)
	})
	if err != nil {
		if c.Err() == nil {
			go c.cancelWait(id)
		}
		return nil, err
	}
	return decodePulled(&request, answer)
}

func decodePulled(request *Pull, answer *reply) ([]Received, error) {
	var result pulled
	if err := decodeResult("pull", answer, &result); err != nil {
		return nil, err
	}
	return result.messages(request.most())
}

// cancelWait ends a long poll whose caller has gone. It takes no place: there is one for each such pull at most.
func (c *Client) cancelWait(id int64) {
	ctx, cancel := context.WithTimeout(context.Background(), afterwardsTimeout)
	defer cancel()
	asked, open, err := c.begin(ctx, "cancel_wait", map[string]any{"id": id}, nil)
	if err == nil {
		_, _ = c.wait(ctx, asked, open, nil)
	}
}

// giveBack nacks what came for a caller that has gone, so that it comes again at once. It uses the place of the pull.
func (c *Client) giveBack(request *Pull, late *reply) {
	rows, err := decodePulled(request, late)
	if err != nil || len(rows) == 0 {
		return
	}
	deliveries := make([]int64, len(rows))
	for row := range rows {
		deliveries[row] = rows[row].Delivery
	}
	ctx, cancel := context.WithTimeout(context.Background(), afterwardsTimeout)
	defer cancel()
	arguments := settle(request.Subject, request.Group, deliveries)
	arguments["delay_ms"] = 0
	id, open, err := c.begin(ctx, "nack", arguments, nil)
	if err == nil {
		_, _ = c.wait(ctx, id, open, nil)
	}
}

func settle(subject, group string, deliveries []int64) map[string]any {
	return map[string]any{"subject": subject, "group": group, "count": len(deliveries), "deliveries": encodeColumn(deliveries, i64)}
}

// Acked is the answer of Ack. Unknown deliveries were not in flight, or not any more.
type Acked struct {
	Acked   int `msgpack:"acked"`
	Unknown int `msgpack:"unknown"`
}

// Ack ends deliveries for good. It returns when that is on the node's disk.
func (c *Client) Ack(ctx context.Context, subject, group string, deliveries ...int64) (Acked, error) {
	var result Acked
	err := c.call(ctx, "ack", settle(subject, group, deliveries), &result)
	return result, err
}

// Nacked is the answer of Nack. Expired counts those of Nacked that expire before they would come again.
type Nacked struct {
	Nacked  int `msgpack:"nacked"`
	Unknown int `msgpack:"unknown"`
	Expired int `msgpack:"expired"`
}

// ServerPause as the delay of Nack leaves the pause to the server. It grows with each redelivery.
const ServerPause time.Duration = -1

// Nack gives deliveries back. They come again after delay, 0 for at once.
func (c *Client) Nack(ctx context.Context, subject, group string, delay time.Duration, deliveries ...int64) (Nacked, error) {
	return c.nack(ctx, settle(subject, group, deliveries), delay)
}

// Snooze gives deliveries back of which nothing has failed: it counts as no attempt. They come again after delay.
func (c *Client) Snooze(ctx context.Context, subject, group string, delay time.Duration, deliveries ...int64) (Nacked, error) {
	arguments := settle(subject, group, deliveries)
	arguments["snooze"] = true
	return c.nack(ctx, arguments, delay)
}

func (c *Client) nack(ctx context.Context, arguments map[string]any, delay time.Duration) (Nacked, error) {
	if delay != ServerPause {
		arguments["delay_ms"] = ceilMs(delay)
	}
	var result Nacked
	err := c.call(ctx, "nack", arguments, &result)
	return result, err
}
