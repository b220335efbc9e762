package delayserver

// Publishing: messages that are due now, straight into the store of this node.

import (
	"context"
	"errors"
)

// Published is a message that this node stored. It has no receipt.
type Published struct {
	ID       string `msgpack:"message_id"`
	Subject  string `msgpack:"subject"`
	Position int64  `msgpack:"position"` // in its subject at this node
}

var errPublishedWithTime = errors.New("a published message is due now: give no Due, Delay or DelayLevel")

// Publish stores a message for the consumers of this node. It returns when that is on disk. The client repeats it only where nothing
// was stored: after a NoReplyError with MaybeDone a second Publish can store a second message, also with the same ID.
// A subject of other nodes is PublishedElsewhere: dial a node that Route gives.
func (c *Client) Publish(ctx context.Context, m *Message) (*Published, error) {
	if !m.Due.IsZero() || m.Delay != 0 || m.DelayLevel != 0 {
		return nil, errPublishedWithTime
	}
	var row struct {
		wireError `msgpack:",inline"`
		Published `msgpack:",inline"`
	}
	arguments := map[string]any{"messages": []any{m.withoutTime()}}
	_, err := c.attempts(ctx, "publish", notTwice, func(on *connection) error {
		return on.callForRow(ctx, "publish", arguments, &row, &row.wireError)
	})
	if err != nil {
		return nil, err
	}
	return &row.Published, nil
}

// PublishedBatch is what became of a published batch.
type PublishedBatch struct {
	Positions []int64 // one for each row; -1 for one that is rejected
	Rejected  []Rejected
}

// PublishColumns publishes a batch in one request, of at most Limits.BatchMessagesMax rows.
func (c *Client) PublishColumns(ctx context.Context, b *Batch) (*PublishedBatch, error) {
	if b.Due != nil || b.Delays != nil {
		return nil, errPublishedWithTime
	}
	if err := b.check(); err != nil {
		return nil, err
	}
	arguments, err := b.withoutTimes()
	if err != nil {
		return nil, err
	}
	var result columnsReply
	if err := c.call(ctx, notTwice, "publish", arguments, &result); err != nil {
		return nil, err
	}
	return result.published(len(b.Bodies))
}

func (r *columnsReply) published(rows int) (*PublishedBatch, error) {
	accepted, rejected, err := r.accepted("publish", rows)
	if err != nil {
		return nil, err
	}
	positions, err := r.Position.rows(len(accepted), i64)
	if err != nil {
		return nil, err
	}
	published := &PublishedBatch{Positions: make([]int64, rows), Rejected: rejected}
	for row := range published.Positions {
		published.Positions[row] = -1
	}
	for place, row := range accepted {
		published.Positions[row] = positions[place]
	}
	return published, nil
}
