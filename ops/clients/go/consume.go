package delayserver

// What a consumer does: pull, ack, nack, extend.

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
	Outlive    time.Duration // the leases end so long after the end of this connection; 0: they outlive it. Extend them over the next one
	Start      Place         // where the group begins, if this pull makes it: Earliest (the default), Latest or AtTime
	Broadcast  bool          // the group belongs to this connection, and gets every message from the end on
	Ack        []Received    // messages of this subject and group to acknowledge first
	Tags       string        // "paid || shipped": the filter of the group from now on; "" and "" keep the one that it has
	Where      string        // "price > 3"
}

// Stored is a message as a node keeps it.
type Stored struct {
	ID           string            `msgpack:"message_id"`
	Subject      string            `msgpack:"subject"`
	ServerID     string            `msgpack:"server_id"`
	Sequence     int64             `msgpack:"sequence"`
	DueMs        int64             `msgpack:"due_ms"`
	AcceptedUs   int64             `msgpack:"accepted_us"`
	DispatchedUs int64             `msgpack:"dispatched_us"`
	ExpiresMs    int64             `msgpack:"expires_ms"` // 0: never, or not known
	Body         []byte            `msgpack:"body"`
	Properties   map[string]string `msgpack:"properties"`
	Tag          string            `msgpack:"tag"`
	OrderKey     string            `msgpack:"order_key"`
	Position     int64             `msgpack:"position"` // in its subject at this node; -1: a redelivery in a queue of its group
}

// Received is a delivery of a message. It can come again: be idempotent by ID. Group, Node, Subject and Delivery name the delivery
// for Ack, Nack and Extend; a program can keep these four alone.
type Received struct {
	Stored
	Group    string
	Node     string // id of the server that handed it out; other servers know nothing of the delivery
	Attempt  int    // above 1: it can have come before
	Delivery int64
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
	Position         column   `msgpack:"position"`
	Tags             []string `msgpack:"tags"`
	TagIndex         column   `msgpack:"tag_index"`
	OrderKeys        []byte   `msgpack:"order_keys"`
	OrderKeyLength   column   `msgpack:"order_key_length"`
}

var errPulled = errors.New("the columns of the reply to pull do not fit together")

// messages makes rows of the columns, at most most of them.
func (p *pulled) messages(most int) ([]Received, error) {
	if p.Count < 0 || p.Count > int64(most) {
		return nil, errPulled
	}
	count := int(p.Count)
	// An older server leaves out the first two, and every server those of which no row has one.
	for _, optional := range []*column{&p.ExpiresMs, &p.Position, &p.TagIndex, &p.OrderKeyLength} {
		if optional.form == missing {
			optional.form = same
		}
	}
	var numbers [10][]int64
	for index, from := range []struct {
		column *column
		kind   columnType
	}{
		{&p.ServerIndex, u32}, {&p.Sequence, i64}, {&p.DueMs, i64}, {&p.AcceptedUs, i64}, {&p.DispatchedUs, i64},
		{&p.ExpiresMs, i64}, {&p.Delivery, i64}, {&p.Attempt, u32}, {&p.Position, i64}, {&p.TagIndex, u32},
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
	keys, err := cut(p.OrderKeys, &p.OrderKeyLength, count)
	if err != nil {
		return nil, err
	}
	rows := make([]Received, count)
	for row := range rows {
		server, tag := numbers[0][row], numbers[9][row]
		if server >= int64(len(p.ServerIDs)) || tag > int64(len(p.Tags)) {
			return nil, errPulled
		}
		rows[row] = Received{
			Stored: Stored{
				ID: string(ids[row]), Subject: p.Subject, ServerID: p.ServerIDs[server], Sequence: numbers[1][row], DueMs: numbers[2][row],
				AcceptedUs: numbers[3][row], DispatchedUs: numbers[4][row], ExpiresMs: numbers[5][row], Body: bodies[row],
				OrderKey: string(keys[row]), Position: numbers[8][row],
			},
			Delivery: numbers[6][row], Attempt: int(numbers[7][row]),
		}
		if tag > 0 {
			rows[row].Tag = p.Tags[tag-1]
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

func (p *Pull) wire(node string) map[string]any {
	arguments := map[string]any{"subject": p.Subject, "group": p.Group, "columns": true, "max_messages": p.most(), "wait_ms": ceilMs(p.Wait)}
	given(arguments, "tags", p.Tags)
	given(arguments, "where", p.Where)
	given(arguments, "max_bytes", p.MaxBytes)
	given(arguments, "ack_timeout_ms", ceilMs(p.AckTimeout))
	given(arguments, "outlive_ms", ceilMs(p.Outlive))
	given(arguments, "broadcast", p.Broadcast)
	if start := p.Start.start(); start != nil {
		arguments["start"] = start
	}
	var deliveries []int64
	for index := range p.Ack {
		if of := &p.Ack[index]; of.Node == node && of.Subject == p.Subject && of.Group == p.Group {
			deliveries = append(deliveries, of.Delivery)
		}
	}
	if len(deliveries) > 0 {
		arguments["ack"] = map[string]any{"count": len(deliveries), "deliveries": encodeColumn(deliveries, i64)}
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
//
// A group has its messages at one node. Where Route names several, pull from each with a Client of its own.
func (c *Client) Pull(ctx context.Context, request Pull) ([]Received, error) {
	var rows []Received
	_, err := c.attempts(ctx, "pull", sameAsOnce, func(on *connection) (err error) {
		rows, err = on.pull(ctx, &request)
		return err
	})
	return rows, err
}

func (c *connection) pull(ctx context.Context, request *Pull) ([]Received, error) {
	id, open, err := c.begin(ctx, "pull", request.wire(c.server.ID), c.pulls)
	if err != nil {
		return nil, err
	}
	answer, err := c.wait(ctx, id, open, func(late *reply) {
		defer open.leave()
		c.giveBack(request, late)
	})
	if err != nil {
		if c.failure() == nil {
			c.spawn(func() { c.cancelWait(id) })
		}
		return nil, err
	}
	return decodePulled(request, c.server.ID, answer)
}

func decodePulled(request *Pull, node string, answer *reply) ([]Received, error) {
	var result pulled
	if err := decodeResult("pull", answer, &result); err != nil {
		return nil, err
	}
	rows, err := result.messages(request.most())
	for row := range rows {
		rows[row].Group, rows[row].Node = request.Group, node
	}
	return rows, err
}

// cancelWait ends a long poll whose caller has gone. It takes no place: there is one for each such pull at most.
func (c *connection) cancelWait(id int64) {
	ctx, cancel := context.WithTimeout(context.Background(), afterwardsTimeout)
	defer cancel()
	asked, open, err := c.begin(ctx, "cancel_wait", map[string]any{"id": id}, nil)
	if err == nil {
		_, _ = c.wait(ctx, asked, open, nil)
	}
}

// giveBack nacks what came for a caller that has gone, so that it comes again at once. It uses the place of the pull.
func (c *connection) giveBack(request *Pull, late *reply) {
	rows, err := decodePulled(request, c.server.ID, late)
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
	arguments["delay_ms"], arguments["unseen"] = 0, true
	id, open, err := c.begin(ctx, "nack", arguments, nil)
	if err == nil {
		_, _ = c.wait(ctx, id, open, nil)
	}
}

func settle(subject, group string, deliveries []int64) map[string]any {
	return map[string]any{"subject": subject, "group": group, "count": len(deliveries), "deliveries": encodeColumn(deliveries, i64)}
}

// consumerGroup is whose deliveries go into one request.
type consumerGroup struct{ node, subject, group string }

// byGroup sorts deliveries by what they belong to, in the order in which the groups first come.
func byGroup(messages []Received) (order []consumerGroup, deliveries map[consumerGroup][]int64) {
	deliveries = map[consumerGroup][]int64{}
	for index := range messages {
		of := consumerGroup{messages[index].Node, messages[index].Subject, messages[index].Group}
		if _, known := deliveries[of]; !known {
			order = append(order, of)
		}
		deliveries[of] = append(deliveries[of], messages[index].Delivery)
	}
	return order, deliveries
}

// settleAll makes one request for each consumer group among messages. Deliveries of another server than the one that is connected
// are not sent: there the same numbers belong to other messages. elsewhere counts them.
func (c *Client) settleAll(ctx context.Context, operation string, messages []Received, more map[string]any, done func(*settledRow)) (elsewhere int, err error) {
	order, deliveries := byGroup(messages)
	for _, of := range order {
		arguments := settle(of.subject, of.group, deliveries[of])
		for name, value := range more {
			arguments[name] = value
		}
		var row settledRow
		sent := false
		_, err := c.attempts(ctx, operation, sameAsOnce, func(on *connection) error {
			if sent = on.server.ID == of.node; !sent {
				return nil
			}
			return on.call(ctx, operation, arguments, &row)
		})
		if err != nil {
			return elsewhere, err
		}
		if !sent {
			elsewhere += len(deliveries[of])
			continue
		}
		done(&row)
	}
	return elsewhere, nil
}

type settledRow struct {
	Acked        int `msgpack:"acked"`
	Nacked       int `msgpack:"nacked"`
	Extended     int `msgpack:"extended"`
	Unknown      int `msgpack:"unknown"`
	Expired      int `msgpack:"expired"`
	DeadLettered int `msgpack:"dead_lettered"`
}

// Acked is the answer of Ack. Unknown deliveries were not in flight, or not any more, or are those of another server. Where the
// client repeated the request, they can be those that its first attempt settled. The same holds for Nacked and Extended.
type Acked struct{ Acked, Unknown int }

// Ack ends deliveries for good. It returns when that is on the node's disk. There is one request for each subject and group.
func (c *Client) Ack(ctx context.Context, messages ...Received) (Acked, error) {
	var result Acked
	elsewhere, err := c.settleAll(ctx, "ack", messages, nil, func(row *settledRow) {
		result.Acked += row.Acked
		result.Unknown += row.Unknown
	})
	result.Unknown += elsewhere
	return result, err
}

// AtOnce as the Delay of NackOptions lets messages come again without a pause.
const AtOnce time.Duration = -1

// NackOptions say how deliveries are given back. The zero value leaves the pause to the server; it grows with each redelivery.
type NackOptions struct {
	Delay      time.Duration // the messages come again after it; 0: after the pause of the server
	DelayLevel int           // in place of Delay: the number of a delay level of the node
	Reason     string        // kept with a message that becomes a dead letter
	Unseen     bool          // the handler has not begun, so the messages do not become dead letters
}

func (o *NackOptions) wire() map[string]any {
	arguments := map[string]any{}
	switch {
	case o.Delay < 0:
		arguments["delay_ms"] = 0
	case o.Delay > 0:
		arguments["delay_ms"] = ceilMs(o.Delay)
	}
	given(arguments, "delay_level", o.DelayLevel)
	given(arguments, "reason", o.Reason)
	given(arguments, "unseen", o.Unseen)
	return arguments
}

// Nacked is the answer of Nack. Expired and DeadLettered count those of Nacked that do not come again.
type Nacked struct{ Nacked, Unknown, Expired, DeadLettered int }

// Nack gives deliveries back, and they come again.
func (c *Client) Nack(ctx context.Context, options NackOptions, messages ...Received) (Nacked, error) {
	var result Nacked
	elsewhere, err := c.settleAll(ctx, "nack", messages, options.wire(), func(row *settledRow) {
		result.Nacked += row.Nacked
		result.Unknown += row.Unknown
		result.Expired += row.Expired
		result.DeadLettered += row.DeadLettered
	})
	result.Unknown += elsewhere
	return result, err
}

// ExtendOptions say how long leases last from now on. Zero values are the server's defaults.
type ExtendOptions struct {
	AckTimeout time.Duration
	Outlive    time.Duration // as for Pull: the leases belong to this connection then
}

func (o *ExtendOptions) wire() map[string]any {
	arguments := map[string]any{}
	given(arguments, "ack_timeout_ms", ceilMs(o.AckTimeout))
	given(arguments, "outlive_ms", ceilMs(o.Outlive))
	return arguments
}

// Extended is the answer of Extend. An Unknown delivery has ended, and its message may be with another consumer.
type Extended struct{ Extended, Unknown int }

// Extend lets leases go on. Extend after a third of the lease, and stop for a handler that hangs.
func (c *Client) Extend(ctx context.Context, options ExtendOptions, messages ...Received) (Extended, error) {
	var result Extended
	elsewhere, err := c.settleAll(ctx, "extend", messages, options.wire(), func(row *settledRow) {
		result.Extended += row.Extended
		result.Unknown += row.Unknown
	})
	result.Unknown += elsewhere
	return result, err
}
