package delayserver

// Figures, and the administration of tokens.

import (
	"context"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// PendingBucket counts messages without an outcome that are due in Width from Start on.
type PendingBucket struct {
	StartMs int64 `msgpack:"start_ms"`
	WidthMs int64 `msgpack:"width_ms"`
	Pending int64 `msgpack:"pending"`
}

// Widths of buckets.
const (
	ByMinute = "minute"
	ByHour   = "hour"
)

// PendingByTime counts the pending messages by ByMinute or ByHour, of buckets that begin from `from` on and before `to`. A zero time is no
// bound. It asks page by page.
func (c *Client) PendingByTime(ctx context.Context, by string, from, to time.Time) ([]PendingBucket, error) {
	arguments := map[string]any{"by": by}
	if !from.IsZero() {
		arguments["from_ms"] = ceilUnixMs(from)
	}
	if !to.IsZero() {
		arguments["to_ms"] = ceilUnixMs(to)
	}
	var buckets []PendingBucket
	for {
		var page struct {
			Buckets []PendingBucket `msgpack:"buckets"`
			NextMs  *int64          `msgpack:"next_ms"`
		}
		if err := c.call(ctx, changesNothing, "pending", arguments, &page); err != nil {
			return nil, err
		}
		buckets = append(buckets, page.Buckets...)
		if page.NextMs == nil {
			return buckets, nil
		}
		arguments["from_ms"] = *page.NextMs
	}
}

// PendingSubject counts the messages of a subject without an outcome.
type PendingSubject struct {
	Subject string `msgpack:"subject"`
	Pending int64  `msgpack:"pending"`
}

// PendingBySubject counts the pending messages of each subject. It asks page by page.
func (c *Client) PendingBySubject(ctx context.Context) ([]PendingSubject, error) {
	arguments := map[string]any{"by": "subject"}
	var subjects []PendingSubject
	for {
		var page struct {
			Subjects []PendingSubject `msgpack:"subjects"`
			Next     *int64           `msgpack:"next"`
		}
		if err := c.call(ctx, changesNothing, "pending", arguments, &page); err != nil {
			return nil, err
		}
		subjects = append(subjects, page.Subjects...)
		if page.Next == nil {
			return subjects, nil
		}
		arguments["after"] = *page.Next
	}
}

// Histogram counts values by their bounds. Counts has one more, for values beyond all bounds.
type Histogram struct {
	BoundsUs []int64 `msgpack:"bounds_us"`
	Counts   []int64 `msgpack:"counts"`
	SumUs    int64   `msgpack:"sum_us"`
	Early    int64   `msgpack:"early"` // of lateness: deliveries before their time; it must be 0
}

// Metrics are the figures that monitors draw. All holds every field that the server gave, those of Status among them.
type Metrics struct {
	Lateness map[string]Histogram `msgpack:"lateness"` // by broker group
	Stages   map[string]Histogram `msgpack:"stages"`
	Subjects []PendingSubject     `msgpack:"subjects"` // those with the most pending messages
	All      map[string]any       `msgpack:"-"`
}

// Metrics asks for all figures.
func (c *Client) Metrics(ctx context.Context) (*Metrics, error) {
	var raw msgpack.RawMessage
	if err := c.call(ctx, changesNothing, "metrics", map[string]any{}, &raw); err != nil {
		return nil, err
	}
	metrics, whole := &Metrics{}, &reply{result: raw}
	if err := decodeResult("metrics", whole, metrics); err != nil {
		return nil, err
	}
	return metrics, decodeResult("metrics", whole, &metrics.All)
}

// Token is an access token. Text is what a client gives as Options.Token. Only a new or rotated one has it: the server cannot show it again.
type Token struct {
	ID         string   `msgpack:"id"`
	Name       string   `msgpack:"name"`
	Roles      []string `msgpack:"roles"`
	Subjects   []string `msgpack:"subjects"`
	CreatedMs  int64    `msgpack:"created_ms"`
	ExpiresMs  int64    `msgpack:"expires_ms"` // 0: never
	Rate       int64    `msgpack:"rate"`       // messages a second; 0: no limit
	BytesRate  int64    `msgpack:"bytes_rate"`
	PendingMax int64    `msgpack:"pending_max"`
	OldUntilMs int64    `msgpack:"old_until_ms"` // of a rotated one: the old secret is valid until then
	Text       string   `msgpack:"token"`
}

// NewToken says what a token may do. Zero values are no limits.
type NewToken struct {
	Roles      []string // some of send, consume, look, admin
	Subjects   []string // shell-style patterns; none: all subjects
	Name       string   // for people
	Expires    time.Time
	Rate       int64 // messages a second
	BytesRate  int64 // bytes of messages a second
	PendingMax int64 // messages that wait
}

func (n *NewToken) wire() map[string]any {
	arguments := map[string]any{"action": "create", "roles": n.Roles}
	if n.Subjects != nil {
		arguments["subjects"] = n.Subjects
	}
	if !n.Expires.IsZero() {
		arguments["expires_ms"] = ceilUnixMs(n.Expires)
	}
	given(arguments, "name", n.Name)
	given(arguments, "rate", n.Rate)
	given(arguments, "bytes_rate", n.BytesRate)
	given(arguments, "pending_max", n.PendingMax)
	return arguments
}

// CreateToken makes a token. After a NoReplyError with MaybeDone there can be one whose text nobody has: revoke it.
func (c *Client) CreateToken(ctx context.Context, token NewToken) (*Token, error) {
	return ask[Token](ctx, c, notTwice, "token", token.wire())
}

// Tokens lists the tokens of the server.
func (c *Client) Tokens(ctx context.Context) ([]Token, error) {
	var result struct {
		Tokens []Token `msgpack:"tokens"`
	}
	err := c.call(ctx, changesNothing, "token", map[string]any{"action": "list"}, &result)
	return result.Tokens, err
}

// RevokeToken ends a token and its connections.
func (c *Client) RevokeToken(ctx context.Context, id string) (*Token, error) {
	return ask[Token](ctx, c, notTwice, "token", map[string]any{"action": "revoke", "id": id})
}

// RotateToken gives a token another secret. The old one stays valid for overlap; nil: an hour.
func (c *Client) RotateToken(ctx context.Context, id string, overlap *time.Duration) (*Token, error) {
	arguments := map[string]any{"action": "rotate", "id": id}
	if overlap != nil {
		arguments["overlap_ms"] = ceilMs(*overlap)
	}
	return ask[Token](ctx, c, notTwice, "token", arguments)
}
