package delayserver

// Reading without a group: by position, and by id, key or time. It changes nothing.

import (
	"context"
	"time"
)

// Read says where to read. Zero values are the server's defaults.
type Read struct {
	Subject  string
	Position int64
	Max      int           // messages; 0 is 1
	MaxBytes int           // 0 is 8 MiB
	Wait     time.Duration // at the end, for the next message
}

// What stands at a position.
const (
	ReadFound      = "found"
	ReadNothingYet = "nothing_yet"
	ReadTooLarge   = "too_large"
	ReadRetired    = "retired"
	ReadTooSmall   = "too_small"
)

// ReadPage are the messages from a position on. Go on at Next.
type ReadPage struct {
	Status   string   `msgpack:"status"`
	First    int64    `msgpack:"first"` // the node keeps positions from here on
	End      int64    `msgpack:"end"`   // where the next message goes
	Next     int64    `msgpack:"next"`
	Messages []Stored `msgpack:"messages"`
}

func (r *Read) wire() map[string]any {
	arguments := map[string]any{"subject": r.Subject, "position": r.Position}
	given(arguments, "max_messages", r.Max)
	given(arguments, "max_bytes", r.MaxBytes)
	given(arguments, "wait_ms", ceilMs(r.Wait))
	return arguments
}

// Read gives the messages of a subject from a position on, consumed or not. When ctx ends, Read returns; its wait at the server goes on.
func (c *Client) Read(ctx context.Context, request Read) (*ReadPage, error) {
	return ask[ReadPage](ctx, c, changesNothing, "read", request.wire())
}

// Find says which messages to look for: by ID, by Key, or by Subject and time.
type Find struct {
	ID       string
	Key      string // a word of the property "keys"
	Subject  string
	From, To time.Time // dispatched from From on and before To; the zero time: no bound
	After    []int64   // the Next of the page before
	Max      int
}

// FoundPage is one page of found messages. It can be empty although Next is not nil.
type FoundPage struct {
	Messages []Stored `msgpack:"messages"`
	Next     []int64  `msgpack:"next"` // nil at the end
}

func (f *Find) wire() map[string]any {
	arguments := map[string]any{}
	given(arguments, "message_id", f.ID)
	given(arguments, "key", f.Key)
	given(arguments, "subject", f.Subject)
	given(arguments, "max", f.Max)
	if !f.From.IsZero() {
		arguments["from_ms"] = ceilUnixMs(f.From)
	}
	if !f.To.IsZero() {
		arguments["to_ms"] = ceilUnixMs(f.To)
	}
	if f.After != nil {
		arguments["after"] = f.After
	}
	return arguments
}

// Find gives messages that this node stores, consumed or not. Lookup finds those that are not due yet.
func (c *Client) Find(ctx context.Context, request Find) (*FoundPage, error) {
	return ask[FoundPage](ctx, c, changesNothing, "find", request.wire())
}
