package delayserver

// What tells about the server: ping, status, groups, route.

import (
	"context"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// Ping returns the server's clock. It is always answered.
func (c *Client) Ping(ctx context.Context) (time.Time, error) {
	look, err := c.pingReading(ctx)
	return time.UnixMicro(look.serverUs), err
}

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
	if err := c.call(ctx, "status", map[string]any{}, &raw); err != nil {
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
		if err := c.call(ctx, "groups", arguments, &page); err != nil {
			return nil, err
		}
		states = append(states, page.Groups...)
		if page.Next == nil || int64(len(states)) >= c.server.Limits.GroupsMax {
			return states, nil
		}
		arguments["after"] = page.Next
	}
}

// Node is where to pull messages.
type Node struct {
	Address string `msgpack:"address"`
	Weight  int64  `msgpack:"weight"`
}

// Route gives the broker group of a subject, and its nodes. A host 0.0.0.0 or :: is this server.
func (c *Client) Route(ctx context.Context, subject string) (group string, nodes []Node, err error) {
	var result struct {
		Group string `msgpack:"group"`
		Nodes []Node `msgpack:"nodes"`
	}
	err = c.call(ctx, "route", map[string]any{"subject": subject}, &result)
	return result.Group, result.Nodes, err
}
