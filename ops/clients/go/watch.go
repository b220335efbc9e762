package delayserver

// What tells about the server and its nodes: status, groups, route, subjects, pending.

import (
	"context"

	"github.com/vmihailenco/msgpack/v5"
)

// Status is for people and monitors. All holds every field that the server gave.
type Status struct {
	Ready        bool               `msgpack:"ready"`
	WaitsFor     string             `msgpack:"waits_for"`
	ServerID     string             `msgpack:"server_id"`
	Version      string             `msgpack:"version"`
	Accepted     int64              `msgpack:"accepted"`
	Delivered    int64              `msgpack:"delivered"`
	Cancelled    int64              `msgpack:"cancelled"`
	DeadLettered int64              `msgpack:"dead_lettered"`
	Expired      int64              `msgpack:"expired"`
	Deduplicated int64              `msgpack:"deduplicated"`
	Pending      int64              `msgpack:"pending"`
	LatenessMs   map[string]float64 `msgpack:"lateness_ms"`
	All          map[string]any     `msgpack:"-"`
}

// Status asks for the counts and the state of the server.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	var raw msgpack.RawMessage
	if err := c.call(ctx, changesNothing, "status", map[string]any{}, &raw); err != nil {
		return nil, err
	}
	status := &Status{}
	whole := &reply{result: raw}
	if err := decodeResult("status", whole, status); err != nil {
		return nil, err
	}
	return status, decodeResult("status", whole, &status.All)
}

// GroupState is what a consumer group of this node has before it.
type GroupState struct {
	Subject         string `msgpack:"subject"`
	Group           string `msgpack:"group"`
	Position        int64  `msgpack:"position"` // everything before it is acked
	End             int64  `msgpack:"end"`
	Lag             int64  `msgpack:"lag"`
	Leased          int64  `msgpack:"leased"`
	Retrying        int64  `msgpack:"retrying"`
	WaitingInPlace  int64  `msgpack:"waiting_in_place"`
	RedeliveryBytes int64  `msgpack:"redelivery_bytes"`
	Expired         int64  `msgpack:"expired"`
	Filtered        int64  `msgpack:"filtered"` // by Tags and Where, since the node started
	Tags            string `msgpack:"tags"`
	Where           string `msgpack:"where"`
	DeadLetters     int64  `msgpack:"dead_letters"`
	OldestMs        *int64 `msgpack:"oldest_ms"` // nil: all is acked
}

// Groups shows the consumer groups of a subject, or of all subjects where it is "". It asks page by page, at most Limits.GroupsMax rows.
func (c *Client) Groups(ctx context.Context, subject string) ([]GroupState, error) {
	arguments := map[string]any{}
	if subject != "" {
		arguments["subject"] = subject
	}
	var states []GroupState
	for {
		var page struct {
			Groups []GroupState `msgpack:"groups"`
			Next   []int64      `msgpack:"next"`
		}
		if err := c.call(ctx, changesNothing, "groups", arguments, &page); err != nil {
			return nil, err
		}
		states = append(states, page.Groups...)
		if page.Next == nil || int64(len(states)) >= c.Server().Limits.GroupsMax {
			return states, nil
		}
		arguments["after"] = page.Next
	}
}

// Node is where to pull messages.
type Node struct {
	Address string `msgpack:"address"`
	Weight  int64  `msgpack:"weight"`
	State   string `msgpack:"state"`    // up, failing, down, draining, unknown, or "" of an older server; there can be more words
	SinceMs int64  `msgpack:"since_ms"` // since when the node is in this state
	Here    bool   `msgpack:"here"`     // it is the server of this client: go on with the address by which it was reached
}

// Route gives the broker group of a subject, and its nodes. A node of another process needs a Client of its own.
func (c *Client) Route(ctx context.Context, subject string) (group string, nodes []Node, err error) {
	var result struct {
		Group string `msgpack:"group"`
		Nodes []Node `msgpack:"nodes"`
	}
	err = c.call(ctx, changesNothing, "route", map[string]any{"subject": subject}, &result)
	return result.Group, result.Nodes, err
}

// KeyNode is the address of the node that gets the next messages of an order key, or "" of an older server.
func (c *Client) KeyNode(ctx context.Context, subject, orderKey string) (string, error) {
	var result struct {
		KeyNode string `msgpack:"key_node"`
	}
	err := c.call(ctx, changesNothing, "route", map[string]any{"subject": subject, "order_key": orderKey}, &result)
	return result.KeyNode, err
}

// SubjectQuery says which subjects to list. Zero values are the server's defaults.
type SubjectQuery struct {
	Pattern string // shell-style
	Prefix  string
	After   int64 // the Next of the page before
	Max     int
}

// SubjectPage is one page of subjects. Ask again with After = Next while More; later the same Next leads to the new ones.
type SubjectPage struct {
	Subjects []string `msgpack:"subjects"`
	Next     int64    `msgpack:"next"`
	More     bool     `msgpack:"more"`
}

func (q *SubjectQuery) wire() map[string]any {
	arguments := map[string]any{}
	given(arguments, "pattern", q.Pattern)
	given(arguments, "prefix", q.Prefix)
	given(arguments, "after", q.After)
	given(arguments, "max", q.Max)
	return arguments
}

// Subjects lists the subjects that this node has met.
func (c *Client) Subjects(ctx context.Context, query SubjectQuery) (*SubjectPage, error) {
	return ask[SubjectPage](ctx, c, changesNothing, "subjects", query.wire())
}

// given sets an argument that is not the zero value of its type.
func given[T comparable](arguments map[string]any, name string, value T) {
	var zero T
	if value != zero {
		arguments[name] = value
	}
}
